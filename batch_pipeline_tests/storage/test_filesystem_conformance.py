"""What every file system guarantees: disks, S3, and a further one that is 150 lines in a test."""

import io
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from batch_pipeline.model.errors import ManifestFileTakenError
from batch_pipeline.model.item import Registered
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Source, Storage
from batch_pipeline.storage import filesystem
from batch_pipeline.storage.filesystem import (
    FileSystem,
    FileWriter,
    State,
    digest,
    filesystem_of,
    local_file,
    register_filesystem,
)
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.landing_poll import PolledLanding
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline.storage.s3 import PART_BYTES
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import manifest, stream
from batch_pipeline_tests.storage.memory_store import SCHEME, MemoryFileSystem

HELLO = b"hello, world"
SMALL, LARGE = b"a part of a request", bytes(range(256)) * (PART_BYTES // 256) + b"and more"
STEM = "orders-00000001-00000003-a1-12345678"


@dataclass(frozen=True)
class Place:
    """An empty folder of a file system."""

    files: FileSystem
    uri: str

    def at(self, name: str) -> str:
        """Return the URI of a name."""
        return self.files.join(self.uri, name)

    def put(self, *names: str, data: bytes = HELLO) -> None:
        """Write files."""
        for name in names:
            uri = self.at(name)
            self.files.make_folder(uri.rpartition("/")[0], parents=True)
            self.files.put(uri, data)

    def names(self, prefix: str = "", *, after: str = "", recursive: bool = True) -> list[str]:
        """List names."""
        listed = self.files.list(f"{self.uri}/{prefix}", after=after, recursive=recursive)
        return [one.name for one in listed]

    def read(self, name: str) -> bytes:
        """Read a whole file."""
        with self.files.open(self.at(name)) as file:
            return file.read()

    def unfinished(self, prefix: str = "") -> list[str]:
        """List the names of unfinished files."""
        return sorted(one.name for one in self.files.unfinished(f"{self.uri}/{prefix}"))

    def written(self, name: str, data: bytes) -> FileWriter:
        """Write a file to its end without finishing it."""
        writer = self.files.create(self.at(name))
        for start in range(0, len(data), 2**20):
            writer.write(memoryview(data)[start : start + 2**20])
        return writer


@pytest.fixture(params=["disk", "s3", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """An empty folder of each file system."""
    uri = to_uri(tmp_path)
    if request.param == "s3":
        uri = f"{request.getfixturevalue('bucket')}/deep/folder"
    if request.param == "memory":
        monkeypatch.setattr(filesystem, "_BY_SCHEME", {**filesystem._BY_SCHEME})
        register_filesystem(SCHEME, MemoryFileSystem())
        uri = f"{SCHEME}://anywhere/folder"
    return Place(filesystem_of(uri), uri)


def test_list_of_an_empty_folder_is_empty(place: Place) -> None:
    assert (place.names(), place.unfinished()) == ([], [])


def test_list_returns_names_in_byte_order_with_facts(place: Place) -> None:
    place.put("b", "a/2", "a.csv", "a/1", "é", "Z", "a b")
    assert place.names() == ["Z", "a b", "a.csv", "a/1", "a/2", "b", "é"]
    for one in place.files.list(f"{place.uri}/"):
        assert one.facts == place.files.head(place.at(one.name))
        assert not one.is_link


def test_list_starts_behind_a_name_that_need_not_exist(place: Place) -> None:
    place.put("2026-01", "2026-02/a", "2026-03")
    assert place.names(after="2026-01") == ["2026-02/a", "2026-03"]
    assert place.names(after="2026-02/") == ["2026-02/a", "2026-03"]
    assert place.names(after="2026-02/a") == ["2026-03"]
    assert place.names(after="2026-03") == []


def test_list_takes_the_beginning_of_a_name_and_one_level(place: Place) -> None:
    place.put("in/a", "in/ab", "in/abc/d", "inner")
    assert place.names("in/", recursive=False) == ["a", "ab"]
    assert place.names("in/ab", recursive=False) == ["ab"]
    assert place.names("inn") == ["inner"]


def test_list_leaves_out_known_files_before_their_names_are_matched(place: Place) -> None:
    place.put("in/a", "in/b", "in/deep/c", "inner")
    facts = place.files.head(place.at("in/b"))
    asked = list[tuple[str, int, State]]()
    matched = list[str]()

    def is_known(name: str, size_bytes: int, state: State) -> bool:
        asked.append((name, size_bytes, state))
        return name != "b"

    listed = place.files.list(f"{place.uri}/in/", facts_for=matched.append, is_known=is_known)
    assert [one.name for one in listed] == matched == ["b"]
    assert sorted(name for name, *_ in asked) == ["a", "b", "deep/c"]
    assert ("b", facts.size_bytes, facts.state) in asked
    listed = place.files.list(f"{place.uri}/in", is_known=lambda name, *_: name != "inner")
    assert [one.name for one in listed] == ["inner"]


def test_head_returns_size_time_and_only_if_known_a_checksum(place: Place) -> None:
    place.put("a")
    facts = place.files.head(place.at("a"), checksum=True)
    assert facts.size_bytes == len(HELLO)
    assert facts.modified_at.utcoffset() == timedelta(0)
    assert facts.sha256 in {None, digest(place.at("a"))}


@pytest.mark.parametrize("call", ["head", "open", "pin"])
def test_missing_file_is_a_file_not_found_error(place: Place, call: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        getattr(place.files, call)(place.at("none"))
    assert (caught.value.strerror or "").lower() == "no such file or directory"


def test_open_reads_any_range(place: Place) -> None:
    place.put("a", data=LARGE)
    with place.files.open(place.at("a")) as file:
        assert file.seek(-8, io.SEEK_END) == len(LARGE) - 8
        assert file.read() == b"and more"
        file.seek(256)
        assert file.read(3) == b"\0\1\2"
        file.seek(5 * 2**20)
        assert file.read(2) == b"\0\1"


def test_open_of_another_version_is_refused(place: Place) -> None:
    place.put("a")
    etag = place.files.head(place.at("a")).etag
    with place.files.open(place.at("a"), etag) as file:
        assert file.read() == HELLO
    place.put("a", data=b"other")
    if etag is not None:
        with pytest.raises(FileExistsError):
            place.files.open(place.at("a"), etag)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_pinned_file_is_read_several_times(place: Place, data: bytes) -> None:
    place.put("a", data=data)
    pinned = place.files.pin(place.at("a"))
    assert pinned.facts == place.files.head(place.at("a"))
    for _ in range(2):
        with pinned.open() as file:
            assert file.read() == data
    pinned.check_unchanged()
    pinned.close()


def test_pinned_file_that_changes_while_it_is_read_is_noticed(place: Place) -> None:
    place.put("a", data=LARGE)
    pinned = place.files.pin(place.at("a"))
    with pinned.open() as file:
        start = file.read(100)
        place.put("a", data=b"other")
        file.seek(6 * 2**20)
        with suppress(FileExistsError):  # a store refuses the read itself
            file.read()
        with pytest.raises(FileExistsError):
            pinned.check_unchanged()
    assert start == LARGE[:100]


@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
def test_written_file_is_invisible_until_it_is_whole(place: Place, data: bytes) -> None:
    writer = place.written("a", data)
    assert place.names() == []
    with pytest.raises(FileNotFoundError):
        place.files.head(place.at("a"))
    writer.finish()
    assert place.names() in ([], ["a"])
    for _ in range(2):
        writer.commit()
        assert place.read("a") == data
    assert (place.names(), place.unfinished()) == (["a"], [])


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("until", ["write", "finish", "commit"])
def test_aborted_file_leaves_nothing(place: Place, data: bytes, until: str) -> None:
    writer = place.written("a", data)
    if until != "write":
        writer.finish()
    if until == "commit":
        writer.commit()
    assert writer.abort()
    assert writer.abort()
    assert (place.names(), place.unfinished()) == ([], [])


def test_unfinished_files_are_listed_and_aborted(place: Place) -> None:
    place.put("whole")
    place.files.make_folder(place.at("deep"))
    for name in ("left", "deep/left"):
        place.written(name, LARGE + LARGE)
    assert place.names() == ["whole"]
    assert place.unfinished() == ["deep/left", "left"]
    assert place.unfinished("le") == ["left"]
    direct = place.files.unfinished(f"{place.uri}/", recursive=False)
    assert [one.name for one in direct] == ["left"]
    [left] = place.files.unfinished(f"{place.uri}/le")
    assert left.uri == place.at("left")
    assert place.files.abort_unfinished(left)
    assert not place.files.abort_unfinished(left)
    assert place.unfinished() == ["deep/left"]


def test_create_if_absent_by_concurrent_writers_has_one_winner(place: Place) -> None:
    texts = [f"writer {number}".encode() for number in range(8)]
    won = together(*[partial(place.files.create_if_absent, place.at("a"), text) for text in texts])
    assert sorted(map(bool, won)) == [False] * 7 + [True]
    assert place.read("a") == texts[[*map(bool, won)].index(True)]
    assert (place.names(), place.unfinished()) == (["a"], [])


def test_create_if_absent_of_the_same_bytes_counts_as_written(place: Place) -> None:
    assert [place.files.create_if_absent(place.at("a"), HELLO) for _ in range(2)] == [True, True]
    assert not place.files.create_if_absent(place.at("a"), HELLO + b"!")
    assert place.read("a") == HELLO


def test_delete_of_files_there_or_not_is_no_error(place: Place) -> None:
    place.put("a", "b", "c")
    for _ in range(2):
        place.files.delete(place.at("a"))
        place.files.delete(place.at("b"), place.at("none"))
    assert place.names() == ["c"]


def test_local_path_of_a_file_holds_its_bytes(place: Place) -> None:
    place.put("a.parquet")
    with local_file(place.at("a.parquet")) as path:
        assert (path.name, path.read_bytes()) == ("a.parquet", HELLO)
    assert path.exists() == place.files.is_local


def test_place_that_can_be_listed_answers_a_ping(place: Place) -> None:
    now = place.files.ping(place.uri)
    assert now is None or now.utcoffset() == timedelta(0)


def test_landing_polls_only_what_is_new(place: Place) -> None:
    place.put("in/a.csv", "in/b.tmp", "in/deep/c.csv")
    landing = SourceLanding(
        stream=stream(source=Source(uri=f"{place.uri}/in")), now=lambda: 4_000_000_000
    )
    polled = PolledLanding(landing, limit=None)

    def poll() -> list[str | None]:
        files = [*polled.found_files()]
        polled.settled(Registered(found=len(files), new_items=len(files)))
        return [landing.name_of(file.location) for file in files]

    assert [poll(), poll()] == [["a.csv", "deep/c.csv"], []]
    place.put("in/b.csv")
    place.put("in/a.csv", data=b"longer than before")
    assert [poll(), poll()] == [["a.csv", "b.csv"], []]
    assert landing.why_not("b.tmp") == "names like .*, *.tmp, *.part, *~ are unfinished files"
    assert landing.why_not("none.csv") == "no such file in the landing"


def test_part_storage_keeps_manifests_and_removes_attempts(place: Place) -> None:
    root = Place(place.files, f"{place.uri}/batches")
    storage = PartFileStorage(Storage(root=root.uri))
    storage.prepare()
    root.put(f"{STEM}-0.jsonl", f"quarantine/{STEM}-0.jsonl", "other")
    root.written(f"{STEM}-1.jsonl", LARGE + LARGE)
    paths = {file.path for file in storage.files()}
    assert f".{STEM}-1.jsonl.tmp" in paths
    assert storage.remove_attempt(STEM) == 3
    uri = storage.point_to(manifest())
    assert storage.point_to(manifest()) == uri
    with pytest.raises(ManifestFileTakenError):
        storage.point_to(manifest(token=UUID(int=7)))
    [file] = [one for one in storage.files() if one.name.endswith(".json")]
    assert (storage.remove(file), storage.remove(file)) == (True, False)
    assert [one.path for one in storage.files()] == ["other"]


def test_links_of_a_disk_are_marked_and_temporary_files_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(HELLO)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / ".a.tmp").write_bytes(b"")
    uri = to_uri(tmp_path)
    listed = filesystem_of(uri).list(f"{uri}/")
    assert [(one.name, one.is_link) for one in listed] == [("a", False), ("link", True)]
    unknown = filesystem_of(uri).list(f"{uri}/", is_known=lambda *_: True)
    assert [one.name for one in unknown] == ["link"]
