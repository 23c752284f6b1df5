"""The contract of file systems, tested on a disk, in S3 and with a custom one in memory."""

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from batch_pipeline.model.errors import ManifestFileTakenError
from batch_pipeline.model.item import Registered
from batch_pipeline.model.location import Roots, to_uri
from batch_pipeline.model.stream import Source, Storage
from batch_pipeline.storage import filesystem
from batch_pipeline.storage.filesystem import (
    FileFacts,
    FileSystem,
    FileWriter,
    IsKnown,
    ListedFile,
    State,
    UnfinishedFile,
    digest,
    filesystem_of,
    register_filesystem,
)
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.landing_poll import PolledLanding
from batch_pipeline.storage.local import local_file
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline.storage.s3 import PART_BYTES
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import manifest, stream

SCHEME = "memory"


@dataclass
class MemoryFileSystem(FileSystem):
    """Files by URI in a dictionary."""

    objects: dict[str, tuple[bytes, FileFacts]] = field(default_factory=dict)
    uploads: dict[str, "MemoryWriter"] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def list(
        self,
        prefix: str,
        *,
        after: str = "",
        recursive: bool = True,
        facts_for: Callable[[str], object] | None = None,
        is_known: IsKnown | None = None,
    ) -> Iterator[ListedFile]:
        folder = prefix[: prefix.rfind("/") + 1]
        for uri in sorted(self.objects, key=str.encode):
            name = uri.removeprefix(folder)
            if uri.startswith(prefix) and name > after and (recursive or "/" not in name):
                facts = self.objects[uri][1]
                if is_known is None or not is_known(name, facts.size_bytes, facts.state):
                    needs_facts = facts_for is None or bool(facts_for(name))
                    yield ListedFile(name, facts if needs_facts else None)

    def head(self, uri: str, *, checksum: bool = False) -> FileFacts:
        return self.version(uri)[1]

    def open(self, uri: str, etag: str | None = None) -> "BufferedReader[Any]":
        return self.pin(uri, etag=etag).open()

    def pin(
        self, uri: str, *, etag: str | None = None, roots: Roots | None = None
    ) -> "MemoryPinned":
        data, facts = self.version(uri)
        if etag not in {None, facts.etag}:
            raise FileExistsError(errno.EEXIST, "another version is there", uri)
        return MemoryPinned(self, uri, data, facts)

    def create(self, uri: str) -> "MemoryWriter":
        return MemoryWriter(self, uri)

    def put(self, uri: str, data: bytes) -> None:
        now = datetime.now(UTC).replace(microsecond=0)
        sha256, etag = hashlib.sha256(data).hexdigest(), uuid4().hex
        facts = FileFacts(size_bytes=len(data), modified_at=now, etag=etag, sha256=sha256)
        self.objects[uri] = data, facts

    def create_if_absent(self, uri: str, data: bytes) -> bool:
        with self.lock:
            if uri not in self.objects:
                self.put(uri, data)
        return self.objects[uri][0] == data

    def delete(self, *uris: str) -> None:
        for uri in uris:
            self.objects.pop(uri, None)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedFile]:
        folder = prefix[: prefix.rfind("/") + 1]
        for upload_id, writer in [*self.uploads.items()]:
            name = writer.uri.removeprefix(folder)
            if writer.uri.startswith(prefix) and "/" not in name:
                yield UnfinishedFile(
                    uri=writer.uri, name=name, started_at=datetime.now(UTC), upload_id=upload_id
                )

    def abort_unfinished(self, file: UnfinishedFile) -> bool:
        return self.uploads.pop(file.upload_id or "", None) is not None

    def version(self, uri: str) -> tuple[bytes, FileFacts]:
        """Return the current content and facts of a file."""
        try:
            return self.objects[uri]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", uri) from None


@dataclass
class MemoryPinned:
    """One version of a file."""

    store: MemoryFileSystem
    uri: str
    data: bytes
    facts: FileFacts
    error: OSError | None = None

    def open(self) -> "BufferedReader[Any]":
        return BufferedReader(BytesIO(self.data))

    def check_unchanged(self) -> None:
        if self.store.head(self.uri) != self.facts:
            raise FileExistsError(errno.EEXIST, "another version is there", self.uri)

    def close(self) -> None:
        pass  # there is nothing to release


class MemoryWriter:
    """A file that becomes visible when it is committed."""

    def __init__(self, store: MemoryFileSystem, uri: str) -> None:
        self.uri = uri
        self._store = store
        self._id = uuid4().hex
        self._data = bytearray()
        store.uploads[self._id] = self

    def write(self, data: bytes | memoryview) -> None:
        self._data += data

    def finish(self) -> None:
        pass  # all bytes are in memory

    def commit(self) -> None:
        if self._store.uploads.pop(self._id, None) is not None:
            self._store.put(self.uri, bytes(self._data))

    def abort(self) -> bool:
        if self._store.uploads.pop(self._id, None) is None:
            self._store.delete(self.uri)
        return True


HELLO = b"hello, world"
SMALL, LARGE = b"a part of a request", bytes(range(256)) * (PART_BYTES // 256) + b"and more"
STEM = "orders-00000001-00000003-a1-12345678"


@dataclass(frozen=True)
class Folder:
    """A folder of a file system."""

    files: FileSystem
    uri: str

    def uri_of(self, name: str) -> str:
        return self.files.join(self.uri, name)

    def put(self, *names: str, data: bytes = HELLO) -> None:
        for name in names:
            uri = self.uri_of(name)
            self.files.make_folder(uri.rpartition("/")[0], parents=True)
            self.files.put(uri, data)

    def names(self, prefix: str = "", *, after: str = "", recursive: bool = True) -> list[str]:
        listed = self.files.list(f"{self.uri}/{prefix}", after=after, recursive=recursive)
        return [file.name for file in listed]

    def read(self, name: str) -> bytes:
        with self.files.open(self.uri_of(name)) as file:
            return file.read()

    def unfinished(self, prefix: str = "") -> list[str]:
        return sorted(one.name for one in self.files.unfinished(f"{self.uri}/{prefix}"))

    def write_unfinished(self, name: str, data: bytes) -> FileWriter:
        """Write all bytes of a file without finishing it."""
        writer = self.files.create(self.uri_of(name))
        for start in range(0, len(data), 2**20):
            writer.write(memoryview(data)[start : start + 2**20])
        return writer


@pytest.fixture(params=["disk", "s3", "memory"])
def folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Folder:
    """An empty folder in each of the file systems."""
    uri = to_uri(tmp_path)
    if request.param == "s3":
        uri = f"{request.getfixturevalue('bucket')}/deep/folder"
    if request.param == "memory":
        monkeypatch.setattr(filesystem, "_BY_SCHEME", {**filesystem._BY_SCHEME})
        register_filesystem(SCHEME, MemoryFileSystem())
        uri = f"{SCHEME}://anywhere/folder"
    return Folder(filesystem_of(uri), uri)


def test_list_of_empty_folder_is_empty(folder: Folder) -> None:
    assert (folder.names(), folder.unfinished()) == ([], [])


def test_list_returns_names_in_byte_order_with_facts(folder: Folder) -> None:
    folder.put("b", "a/2", "a.csv", "a/1", "é", "Z", "a b")
    assert folder.names() == ["Z", "a b", "a.csv", "a/1", "a/2", "b", "é"]
    for one in folder.files.list(f"{folder.uri}/"):
        assert one.facts == folder.files.head(folder.uri_of(one.name))
        assert not one.is_link


def test_list_starts_after_a_name_that_need_not_exist(folder: Folder) -> None:
    folder.put("2026-01", "2026-02/a", "2026-03")
    assert folder.names(after="2026-01") == ["2026-02/a", "2026-03"]
    assert folder.names(after="2026-02/") == ["2026-02/a", "2026-03"]
    assert folder.names(after="2026-02/a") == ["2026-03"]
    assert folder.names(after="2026-03") == []


def test_list_of_name_prefix_and_of_one_level(folder: Folder) -> None:
    folder.put("in/a", "in/ab", "in/abc/d", "inner")
    assert folder.names("in/", recursive=False) == ["a", "ab"]
    assert folder.names("in/ab", recursive=False) == ["ab"]
    assert folder.names("inn") == ["inner"]


def test_list_skips_known_files_before_matching_names(folder: Folder) -> None:
    folder.put("in/a", "in/b", "in/deep/c", "inner")
    facts = folder.files.head(folder.uri_of("in/b"))
    calls = list[tuple[str, int, State]]()
    matched = list[str]()

    def is_known(name: str, size_bytes: int, state: State) -> bool:
        calls.append((name, size_bytes, state))
        return name != "b"

    listed = folder.files.list(f"{folder.uri}/in/", facts_for=matched.append, is_known=is_known)
    assert [one.name for one in listed] == matched == ["b"]
    assert sorted(name for name, *_ in calls) == ["a", "b", "deep/c"]
    assert ("b", facts.size_bytes, facts.state) in calls
    listed = folder.files.list(f"{folder.uri}/in", is_known=lambda name, *_: name != "inner")
    assert [one.name for one in listed] == ["inner"]


def test_head_returns_size_time_and_known_checksum(folder: Folder) -> None:
    folder.put("a")
    facts = folder.files.head(folder.uri_of("a"), checksum=True)
    assert facts.size_bytes == len(HELLO)
    assert facts.modified_at.utcoffset() == timedelta(0)
    assert facts.sha256 in {None, digest(folder.uri_of("a"))}


def test_missing_file_raises_file_not_found(folder: Folder) -> None:
    calls: list[Callable[[str], object]] = [
        folder.files.head,
        folder.files.open,
        folder.files.pin,
    ]
    for call in calls:
        with pytest.raises(FileNotFoundError) as caught:
            call(folder.uri_of("none"))
        assert (caught.value.strerror or "").lower() == "no such file or directory"


def test_open_of_other_version_is_rejected(folder: Folder) -> None:
    folder.put("a")
    etag = folder.files.head(folder.uri_of("a")).etag
    with folder.files.open(folder.uri_of("a"), etag) as file:
        assert file.read() == HELLO
    folder.put("a", data=b"other")
    if etag is not None:
        with pytest.raises(FileExistsError):
            folder.files.open(folder.uri_of("a"), etag)


def test_pinned_file_can_be_read_repeatedly(folder: Folder) -> None:
    for data in (SMALL, LARGE):
        folder.put("a", data=data)
        pinned = folder.files.pin(folder.uri_of("a"))
        assert pinned.facts == folder.files.head(folder.uri_of("a"))
        for _ in range(2):
            with pinned.open() as file:
                assert file.read() == data
        pinned.check_unchanged()
        pinned.close()


def test_change_of_pinned_file_is_detected(folder: Folder) -> None:
    folder.put("a", data=LARGE)
    pinned = folder.files.pin(folder.uri_of("a"))
    with pinned.open() as file:
        start = file.read(100)
        folder.put("a", data=b"other")
        file.seek(6 * 2**20)
        with suppress(FileExistsError):  # an object store rejects the read itself
            file.read()
        with pytest.raises(FileExistsError):
            pinned.check_unchanged()
    assert start == LARGE[:100]


def test_written_file_is_invisible_until_complete(folder: Folder) -> None:
    for data in (b"", SMALL, LARGE):
        writer = folder.write_unfinished("a", data)
        assert folder.names() == []
        with pytest.raises(FileNotFoundError):
            folder.files.head(folder.uri_of("a"))
        writer.finish()
        assert folder.names() in ([], ["a"])
        for _ in range(2):
            writer.commit()
            assert folder.read("a") == data
        assert (folder.names(), folder.unfinished()) == (["a"], [])
        folder.files.delete(folder.uri_of("a"))


@pytest.mark.parametrize("until", ["write", "finish", "commit"])
def test_aborted_file_is_removed(folder: Folder, until: str) -> None:
    for data in (SMALL, LARGE):
        writer = folder.write_unfinished("a", data)
        if until != "write":
            writer.finish()
        if until == "commit":
            writer.commit()
        assert (writer.abort(), writer.abort()) == (True, True)
        assert (folder.names(), folder.unfinished()) == ([], [])


def test_unfinished_files_are_listed_and_aborted(folder: Folder) -> None:
    folder.put("whole")
    folder.files.make_folder(folder.uri_of("deep"))
    for name in ("left", "deep/left"):
        folder.write_unfinished(name, LARGE + LARGE)
    assert folder.names() == ["whole"]
    assert (folder.unfinished(), folder.unfinished("deep/")) == (["left"], ["left"])
    assert folder.unfinished("le") == ["left"]
    [left] = folder.files.unfinished(f"{folder.uri}/le")
    assert left.uri == folder.uri_of("left")
    assert folder.files.abort_unfinished(left)
    assert not folder.files.abort_unfinished(left)
    assert (folder.unfinished(), folder.unfinished("deep/")) == ([], ["left"])


def test_create_if_absent_by_concurrent_writers_has_one_winner(folder: Folder) -> None:
    texts = [f"writer {number}".encode() for number in range(8)]
    results = together(
        *[partial(folder.files.create_if_absent, folder.uri_of("a"), text) for text in texts]
    )
    assert sorted(map(bool, results)) == [False] * 7 + [True]
    assert folder.read("a") == texts[[*map(bool, results)].index(True)]
    assert (folder.names(), folder.unfinished()) == (["a"], [])


def test_create_if_absent_of_same_bytes_succeeds(folder: Folder) -> None:
    uri = folder.uri_of("a")
    assert [folder.files.create_if_absent(uri, HELLO) for _ in range(2)] == [True, True]
    for other in (HELLO + b"!", HELLO[:-1], b"", b"another text"):
        assert not folder.files.create_if_absent(uri, other)
    assert folder.read("a") == HELLO


def test_delete_ignores_missing_files(folder: Folder) -> None:
    folder.put("a", "b", "c")
    for _ in range(2):
        folder.files.delete(folder.uri_of("a"))
        folder.files.delete(folder.uri_of("b"), folder.uri_of("none"))
    assert folder.names() == ["c"]


def test_local_file_has_the_bytes(folder: Folder) -> None:
    folder.put("a.parquet")
    with local_file(folder.uri_of("a.parquet")) as path:
        assert (path.name, path.read_bytes()) == ("a.parquet", HELLO)
        # The next process removes the copy of a killed process.
        is_private = path.parent.name.startswith("batch-pipeline-copy-")
        assert is_private != folder.files.is_local
    assert path.exists() == folder.files.is_local


def test_ping_of_listable_folder(folder: Folder) -> None:
    now = folder.files.ping(folder.uri)
    assert now is None or now.utcoffset() == timedelta(0)


def test_polled_landing_returns_new_and_changed_files(folder: Folder) -> None:
    folder.put("in/a.csv", "in/b.tmp", "in/deep/c.csv")
    landing = SourceLanding(
        stream=stream(source=Source(uri=f"{folder.uri}/in")), now=lambda: 4_000_000_000
    )
    polled = PolledLanding(landing, limit=None)

    def poll() -> list[str | None]:
        files = [*polled.found_files()]
        polled.settled(Registered(found=len(files), new_items=len(files)))
        return [landing.name_of(file.location) for file in files]

    assert [poll(), poll()] == [["a.csv", "deep/c.csv"], []]
    folder.put("in/b.csv")
    folder.put("in/a.csv", data=b"longer than before")
    assert [poll(), poll()] == [["a.csv", "b.csv"], []]
    assert landing.why_not("b.tmp") == "names like .*, *.tmp, *.part, *~ are unfinished files"
    assert landing.why_not("none.csv") == "no such file in the landing"


def test_part_storage_writes_manifests_and_removes_attempts(folder: Folder) -> None:
    root = Folder(folder.files, f"{folder.uri}/batches")
    storage = PartFileStorage(Storage(root=root.uri))
    storage.prepare()
    root.put(f"{STEM}-0.jsonl", f"quarantine/{STEM}-0.jsonl", "other")
    root.write_unfinished(f"{STEM}-1.jsonl", LARGE + LARGE)
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


def test_list_on_disk_marks_links_and_skips_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(HELLO)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / ".a.tmp").write_bytes(b"")
    uri = to_uri(tmp_path)
    listed = filesystem_of(uri).list(f"{uri}/")
    assert [(one.name, one.is_link) for one in listed] == [("a", False), ("link", True)]
    unknown = filesystem_of(uri).list(f"{uri}/", is_known=lambda *_: True)
    assert [one.name for one in unknown] == ["link"]
