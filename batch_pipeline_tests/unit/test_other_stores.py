"""Landings in stores that Arrow reaches: listed, read as files of a disk are, never written."""

import errno
import gzip
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batch_pipeline.domain.errors import (
    BadFileError,
    InvalidValueError,
    LandingUnavailableError,
    PipelineError,
    SourceUnavailableError,
)
from batch_pipeline.domain.item import FoundFile, Registered
from batch_pipeline.domain.location import split_root
from batch_pipeline.domain.record_rules import BadFileKind, BadFileRules, OnBadFile
from batch_pipeline.domain.stream import Source
from batch_pipeline.files.object_landing import ObjectLanding
from batch_pipeline.files.watched_objects import WatchedObjects
from batch_pipeline.spark.read.sources import open_source
from batch_pipeline.stores import arrow_store
from batch_pipeline.stores.facts import look
from batch_pipeline.stores.failures import UnreachableError, reason_of
from batch_pipeline.stores.listing import objects
from batch_pipeline.stores.reading import open_uri
from batch_pipeline_tests.factories import stream
from batch_pipeline_tests.integration.places import Folder, between, content, task
from batch_pipeline_tests.other_store import OtherStore
from batch_pipeline_tests.unit.landed_files import STREAM

MIB = 2**20
LATER = 2_000_000_000
OUT_OF_REACH = OSError("google::cloud::Status(UNAVAILABLE: busy error_info={reason=})")

NO_LOGIN = (
    "no credentials were found, or they are not accepted; set GOOGLE_APPLICATION_CREDENTIALS, "
    "log in by gcloud, or give the machine an account"
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OtherStore:
    """A store with one bucket, in which nothing lies."""
    return OtherStore(tmp_path / "store", monkeypatch)


def landing(store: OtherStore, **source: Any) -> ObjectLanding:
    """Give the landing of a stream below the store's prefix."""
    return ObjectLanding(stream=stream(source=Source(**{"uri": store.uri} | source)))


def names(watched: WatchedObjects | ObjectLanding) -> list[str]:
    """List the files' names below the prefix."""
    return [file.location.partition("/in/")[2] for file in watched.found_files()]


def test_objects_are_listed_by_the_bytes_of_their_keys(store: OtherStore) -> None:
    """Expect keys as they stand, no folders, and those up to a key left out."""
    for name in ("é.csv", "a/z.csv", "a b%20#?.csv", "a.csv", "Z.csv"):
        store.put(name)
    keys = [one.key for one in objects(f"{store.uri}/")]
    expected = ["in/Z.csv", "in/a b%20#?.csv", "in/a.csv", "in/a/z.csv", "in/é.csv"]
    assert keys == expected
    assert [one.key for one in objects(f"{store.uri}/", after="in/a.csv")] == expected[3:]
    assert [one.key for one in objects("gs://landed/")] == expected


def test_listed_object_has_the_facts_that_a_look_at_it_gives(store: OtherStore) -> None:
    """Expect size and time, which stand for the version where there is no ETag."""
    seen = store.put("a b%20é+.csv", b"12345")
    assert [*landing(store).found_files()] == [seen]
    assert (seen.location, seen.size_bytes, seen.etag) == ("gs://landed/in/a b%20é+.csv", 5, None)
    assert seen.modified_at is not None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, ["a.csv", "a.txt", "sub/b.csv"]),
        ({"include": ("*.csv",), "exclude": ("sub/*",)}, ["a.csv"]),
    ],
    ids=["all", "chosen"],
)
def test_found_objects_follow_the_rules_of_folders(
    store: OtherStore, source: dict[str, Any], expected: list[str]
) -> None:
    """Expect patterns from below the prefix on, and unfinished names to be left out."""
    for name in ("a.csv", "a.txt", "sub/b.csv", "c.tmp", ".hidden/d.csv", "../inside.csv"):
        store.put(name)
    assert names(landing(store, **source)) == expected


def test_prefix_of_no_key_is_empty_but_no_bucket_is_an_error(store: OtherStore) -> None:
    """Expect a name that is wrong to be told from a landing that nothing has come to."""
    assert names(landing(store)) == []
    with pytest.raises(LandingUnavailableError, match="there is no such bucket or container"):
        names(landing(store, uri="gs://lost/in"))


def test_object_stands_as_it_is_told(store: OtherStore) -> None:
    """Expect the words that other landings have."""
    seen, place = store.put("a.csv"), landing(store)
    assert place.compare(seen) == "unchanged since"
    store.put("a.csv", b"id\n10\n")
    assert place.compare(seen) == "changed since: now 6 B"
    assert place.why_not("a.csv").startswith("there and not registered yet")
    assert place.why_not("b.csv") == "no such object below this prefix"
    assert place.why_not("gs://landed/other/b.csv") == "the file lies outside of this prefix"


def test_watched_object_is_given_again_once_it_has_changed(
    store: OtherStore, tmp_path: Path
) -> None:
    """Expect the time to tell a new version of the same size."""
    store.put("a.csv")
    watched = WatchedObjects(landing(store), most_keys=None)
    assert names(watched) == ["a.csv"]
    watched.settled(Registered(found=1, new_items=1))
    assert names(watched) == []
    os.utime(tmp_path / "store/landed/in/a.csv", (LATER, LATER))
    assert names(watched) == ["a.csv"]


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (
            PermissionError(errno.EACCES, "google::cloud::Status(PERMISSION_DENIED: no.)\nmore"),
            PermissionError,
            "the store refuses: PERMISSION_DENIED: no",
        ),
        (
            PermissionError(errno.EACCES, "google::cloud::Status(UNAUTHENTICATED: who?)"),
            UnreachableError,
            f"{NO_LOGIN} (UNAUTHENTICATED: who?)",
        ),
        (
            OUT_OF_REACH,
            UnreachableError,
            "it cannot be asked: UNAVAILABLE: busy",
        ),
        (pa.ArrowCapacityError("too many"), UnreachableError, "it cannot be asked: too many"),
        (pa.ArrowInvalid("Empty path component"), OSError, "Empty path component"),
    ],
    ids=["denied", "unknown", "busy", "slow-down", "path"],
)
def test_failure_of_a_store_is_told_by_its_kind(
    store: OtherStore, error: Exception, kind: type[OSError], reason: str
) -> None:
    """Expect what is wrong with all of a store to be told from what is wrong with an object."""
    store.fail(error)
    for ask in (look, open_uri, lambda uri: [*objects(f"{uri}/")]):
        with pytest.raises(OSError, match=r"\S") as caught:
            ask("gs://landed/in/a.csv")
        assert type(caught.value) is kind
        assert reason_of(caught.value) == reason
    with pytest.raises(LandingUnavailableError) as told:
        names(landing(store))
    assert told.value.reason == reason


def test_word_in_a_key_says_nothing_of_credentials(store: OtherStore) -> None:
    """Expect an object's own name not to be taken for the store's reason."""
    store.fail(PermissionError(errno.EACCES, "no right to in/credential.csv"))
    with pytest.raises(PermissionError, match="the store refuses: no right to in/credential"):
        look("gs://landed/in/credential.csv")


def refusal(file: FoundFile) -> PipelineError:
    """Open an object that cannot be used, and give the error."""
    with pytest.raises(PipelineError) as caught, open_source(file, STREAM) as source:
        source.read(9 * MIB)
    return caught.value


def kind_of(file: FoundFile) -> tuple[BadFileKind, str]:
    """Open an object that is a bad file: its kind and the reason."""
    error = refusal(file)
    assert isinstance(error, BadFileError)
    return BadFileKind(error.kind), error.reason


def test_object_of_any_size_is_read_from_any_place(store: OtherStore) -> None:
    """Expect small and large ones, and those of which nothing was noted, to give their bytes."""
    data = b"PAR1" + os.urandom(5 * MIB)
    file = store.put("large.parquet", data)
    for one in (file, FoundFile(location=file.location)):
        with open_source(one, STREAM) as source:
            assert source.facts.size_bytes == len(data)
            source.seek(len(data) - 10)
            assert source.read(20) == data[-10:]
            assert source.reopened().read(100) == data[:100]
    with open_source(store.put("a.csv"), STREAM) as source:
        assert source.read(100) == b"id\n1\n"


def test_object_that_has_changed_or_is_gone_is_a_bad_file(store: OtherStore) -> None:
    """Expect size and time to be compared with what was registered."""
    old = store.put("orders.csv")
    early = replace(old, modified_at=old.modified_at and old.modified_at.replace(year=2000))
    kind, reason = kind_of(early)
    assert (kind, reason[:53]) == (
        BadFileKind.CHANGED,
        "changed since it was registered: modified 2000-" + reason[47:53],
    )
    store.put("orders.csv", b"id\n10\n")
    told = "changed since it was registered: size 5 -> 6 B"
    assert kind_of(old) == (BadFileKind.CHANGED, told)
    store.remove("orders.csv")
    assert kind_of(old) == (BadFileKind.MISSING, "is not there")


@pytest.mark.parametrize("size", [100, 5 * MIB], ids=["small", "large"])
def test_object_replaced_or_removed_while_it_is_read_is_no_good(
    store: OtherStore, size: int
) -> None:
    """Expect bytes of two versions never to count as one file."""
    file = store.put("orders", b"Obj\1" + os.urandom(size))

    def read_while(deed: Any) -> None:
        with open_source(replace(file, size_bytes=None, modified_at=None), STREAM) as source:
            source.read(10)
            deed()

    with pytest.raises(BadFileError, match="changed while it was read"):
        read_while(lambda: store.put("orders", b"other"))
    with pytest.raises(BadFileError, match="is not there"):
        read_while(lambda: store.remove("orders"))


def test_object_cut_short_between_a_look_and_reading_is_another_one(store: OtherStore) -> None:
    """Expect an end to the wait for bytes that never come."""
    with open_uri(store.put("a.csv").location) as file:
        store.write("a.csv", b"")
        with pytest.raises(FileExistsError, match="another version of the object is there"):
            file.read()


def test_store_out_of_reach_makes_no_bad_file(store: OtherStore) -> None:
    """Expect an error that says to run again, also where the store fails at the end."""
    file = store.put("orders.csv")

    def read_until_it_fails() -> None:
        with open_source(file, STREAM) as source:
            source.read(10)
            store.fail(OUT_OF_REACH)

    with pytest.raises(SourceUnavailableError):
        read_until_it_fails()
    assert isinstance(refusal(file), SourceUnavailableError)


@pytest.mark.parametrize(
    ("location", "error", "reason"),
    [
        ("gs://lost/in/a.csv", None, "there is no such bucket or container"),
        ("gs://landed/a.csv", PermissionError(errno.EACCES, "no"), "the store refuses: no"),
    ],
    ids=["bucket", "refusal"],
)
def test_store_that_refuses_or_has_no_bucket_makes_no_bad_file(
    store: OtherStore, location: str, error: Exception | None, reason: str
) -> None:
    """Expect no object to be blamed for what is wrong with the access to all."""
    if error is not None:
        store.fail(error)
    told = refusal(FoundFile(location=location))
    assert isinstance(told, SourceUnavailableError)
    assert told.reason == reason


def test_objects_are_encoded_and_bad_ones_set_aside(store: OtherStore, tmp_path: Path) -> None:
    """Expect the records of what is as registered, and a report of the others."""
    good = [store.put(f"{number:02}.csv", b"id\n%d\n" % number) for number in range(9)]
    old = store.put("old.csv")
    store.write("old.csv", b"id\n10\n")
    gone = replace(old, location="gs://landed/in/gone.csv")
    rules = BadFileRules.all(OnBadFile.QUARANTINE)
    described = between(STREAM, store, Folder(tmp_path / "out"))
    report = task(replace(described, on_bad_file=rules), [*good, old, gone], id="integer")
    kinds = [*[None] * 9, BadFileKind.CHANGED, BadFileKind.MISSING]
    assert [item.bad_kind for item in report.items] == kinds
    (part,) = report.part_files
    assert gzip.decompress(content(part)) == b"".join(b'{"id":%d}\n' % one for one in range(9))


@pytest.mark.parametrize(
    ("uri", "split"),
    [
        ("gs://bucket/in/a b%20#.csv", ("gs://bucket", "in/a b%20#.csv")),
        ("GS://bucket", ("gs://bucket", "")),
        (
            "abfss://cont@acc.dfs.core.windows.net/a.csv",
            ("abfss://cont@acc.dfs.core.windows.net", "a.csv"),
        ),
        ("s3://bucket/a.csv#bytes=0-9", ("s3://bucket", "a.csv")),
    ],
    ids=["google", "bucket", "azure", "s3"],
)
def test_object_is_split_into_its_bucket_and_key(uri: str, split: tuple[str, str]) -> None:
    """Expect the key as it stands."""
    assert split_root(uri) == split


@pytest.mark.parametrize(
    "uri",
    [
        "gs://me:hunter2@bucket/a",
        "gs://b/a",
        "abfs://container/a",
        "abfs://cont:hunter2@acc.dfs.core.windows.net/a",
        "abfs://cont@acc.blob.core.windows.net/a",
        "abfs://cont@acc.example.com/a",
        "gs://bucket/a\0",
        "http://bucket/a",
    ],
)
def test_object_of_no_known_bucket_is_refused(uri: str) -> None:
    """Expect no password, and no host that is not the store's, to be asked anything."""
    with pytest.raises(InvalidValueError):
        split_root(uri)


@pytest.mark.parametrize(
    ("root", "path"),
    [("gs://bucket", "bucket"), ("abfss://cont@acc.dfs.core.windows.net", "cont")],
    ids=["google", "azure"],
)
def test_file_system_is_arrows_own_and_made_once(root: str, path: str) -> None:
    """Expect Arrow to know these names; nothing is asked of a store."""
    system, bucket = arrow_store._file_system(root)
    assert bucket == path
    assert arrow_store._file_system(root)[0] is system


def test_files_of_disks_do_not_import_arrow(tmp_path: Path) -> None:
    """Expect whoever uses no such store not to pay for it."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"id\n")
    script = (
        "import sys; from batch_pipeline.stores.facts import look;"
        "from batch_pipeline.stores.reading import open_uri; import batch_pipeline.stores.listing;"
        f"open_uri('{path.as_uri()}').close(); look('{path.as_uri()}');"
        "print('pyarrow' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
