"""Which files are garbage, by their name, their age and their attempts."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.cancellation import CancellationFlag
from batch_pipeline.encode.writers.part_writer import PartNames
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch, IdRange
from batch_pipeline.model.encoding import SUFFIXES
from batch_pipeline.model.garbage import (
    SHORTEST_GRACE,
    UNKNOWN_FOR,
    AttemptFile,
    Folder,
    KnownAttempt,
    ManifestFile,
    Owner,
    Probe,
    Reason,
    StoredFile,
    classify,
    parse_name,
)
from batch_pipeline.model.load import PostgresTarget
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import STREAM_NAME, Storage
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.factories import NOON, batch, manifest, stream

TOKEN = UUID("12345678-1234-4234-8234-123456789012")
NAME = "orders-00000001-00000003-a1-12345678-00000000-abcdef01.jsonl.gz"
CANCELLATION_FLAG = ".orders-00000001-00000003-a1-12345678-abcdef01.stop"
MANIFEST_FILE = "orders-00000001-00000003.g1.json"
HEX = "0123456789abcdef0123456789abcdef"
IDS = IdRange(first_id=1, last_id=3)
LONG_AGO = NOON - timedelta(days=30)
TEN_DAYS_AGO = NOON - timedelta(days=10)
NINE_DAYS, TEN_DAYS, NO_TIME = timedelta(days=9), timedelta(days=10), timedelta(0)
CLOSED = [AttemptStatus.FAILED, AttemptStatus.ABANDONED, AttemptStatus.CANCELLED]


def attempt(**overrides: Any) -> KnownAttempt:
    """Return an attempt at batch 1..3 of `orders` that failed 30 days ago."""
    facts: dict[str, Any] = {
        "id": 7,
        "job": "orders",
        "stream": "orders",
        "ids": IDS,
        "number": 1,
        "token": TOKEN,
        "status": AttemptStatus.FAILED,
        "lease": timedelta(minutes=5),
        "ended_at": LONG_AGO,
    }
    return KnownAttempt(**(facts | overrides))


def published(**overrides: Any) -> KnownAttempt:
    """Return the attempt of the first generation, published 30 days ago, with one file."""
    facts: dict[str, Any] = {
        "status": AttemptStatus.SUCCEEDED,
        "generation": 1,
        "file_names": frozenset({NAME}),
    }
    return attempt(**(facts | overrides))


def owner(*others: str, targets: str = "ab", **storage: Any) -> Owner:
    """Return the stream `orders`, with a backfill and targets; others share its storage root."""
    orders = stream(
        storage=Storage(root="file:///batches", **storage),
        targets=tuple(PostgresTarget(name=name, conn="$DW") for name in targets),
    )
    return Owner.of(
        orders, [stream(name=name) for name in others], {"orders": {"orders", "orders.2023"}}
    )


def reason(
    name: str,
    *known: KnownAttempt,
    of: Owner | None = None,
    modified_at: datetime = LONG_AGO,
    size_bytes: int = 10,
    folder: Folder = Folder.ROOT,
) -> Reason | None:
    """Return why a file is garbage, or None if it is kept."""
    if ".json-" in name or name.endswith(".json"):
        folder = Folder.MANIFESTS
    file = StoredFile(folder=folder, name=name, size_bytes=size_bytes, modified_at=modified_at)
    parsed = parse_name(folder, name)
    assert parsed is not None
    garbage = classify(file, parsed, known, of or owner(), NOON)
    if garbage is None:
        return None
    is_of_generation = garbage.reason in {Reason.SUPERSEDED, Reason.LOADED, Reason.QUARANTINED}
    assert garbage.attempt_ids == (tuple(one.id for one in known) if is_of_generation else ())
    return garbage.reason


def test_file_of_unpublished_attempt_is_garbage() -> None:
    for status, name in product(CLOSED, (NAME, f".{NAME}.tmp", CANCELLATION_FLAG)):
        assert reason(name, attempt(status=status)) is Reason.UNPUBLISHED
    assert reason(NAME, attempt(), modified_at=NOON - SHORTEST_GRACE) is None
    assert reason(NAME, attempt(status=AttemptStatus.RUNNING, ended_at=None)) is None
    assert reason(NAME, attempt(), of=owner(prefix="eu-")) is None
    assert reason(f"eu-{NAME}", attempt(), of=owner(prefix="eu-")) is Reason.UNPUBLISHED


@pytest.mark.parametrize(
    ("lease", "ended", "expected"),
    [
        (timedelta(minutes=5), timedelta(hours=24), None),
        (timedelta(minutes=5), timedelta(hours=24, seconds=1), Reason.UNPUBLISHED),
        (timedelta(hours=3), timedelta(hours=30), None),
        (timedelta(hours=3), timedelta(hours=30, seconds=1), Reason.UNPUBLISHED),
        (timedelta(hours=-3), timedelta(hours=1), None),  # an expired lease
    ],
)
def test_file_is_kept_for_a_day_and_ten_leases(
    lease: timedelta, ended: timedelta, expected: Reason | None
) -> None:
    assert reason(NAME, attempt(lease=lease, ended_at=NOON - ended)) is expected


def test_file_missing_in_manifest_is_garbage() -> None:
    other = NAME.replace("abcdef01", "abcdef02")
    assert reason(other, published()) is Reason.UNLISTED
    assert reason(f".{NAME}.tmp", published()) is Reason.UNLISTED
    assert reason(NAME, published()) is None


@pytest.mark.parametrize("name", [NAME, MANIFEST_FILE])
@pytest.mark.parametrize(
    ("keep", "overrides", "expected"),
    [
        (None, {}, None),
        (NINE_DAYS, {}, Reason.SUPERSEDED),
        (TEN_DAYS, {}, None),
        (NO_TIME, {"replaced_at": NOON - timedelta(hours=24)}, None),
        (NO_TIME, {"replaced_at": NOON - timedelta(hours=25)}, Reason.SUPERSEDED),
        (NO_TIME, {"replaced_at": None}, None),
        (NO_TIME, {"unread": True}, None),
    ],
)
def test_superseded_generation_is_garbage_after_keep_superseded(
    name: str, keep: timedelta | None, overrides: dict[str, Any], expected: Reason | None
) -> None:
    one = published(**({"replaced_at": TEN_DAYS_AGO} | overrides))
    assert reason(name, one, of=owner(keep_superseded=keep)) is expected


@pytest.mark.parametrize("name", [NAME, MANIFEST_FILE])
@pytest.mark.parametrize(
    ("keep", "overrides", "expected"),
    [
        (None, {}, None),
        (NINE_DAYS, {}, Reason.LOADED),
        (TEN_DAYS, {}, None),
        (NO_TIME, {"acknowledged": {"a": TEN_DAYS_AGO}}, None),
        (NO_TIME, {"acknowledged": {}}, None),
        (NO_TIME, {"acknowledged": {"a": NOON - timedelta(hours=24)}}, None),
        (NO_TIME, {"held": True}, None),
        (NO_TIME, {"unread": True}, None),
        (NINE_DAYS, {"replaced_at": NOON}, Reason.LOADED),
        (None, {"marked": True, "acknowledged": {}}, Reason.LOADED),
        (None, {"marked": True, "held": True, "unread": True}, Reason.LOADED),
        (None, {"marked": True, "replaced_at": NOON}, Reason.SUPERSEDED),
    ],
)
def test_loaded_generation_is_garbage_after_keep_loaded(
    name: str, keep: timedelta | None, overrides: dict[str, Any], expected: Reason | None
) -> None:
    acknowledged = {"a": LONG_AGO, "b": TEN_DAYS_AGO, "gone": NOON}
    one = published(**({"acknowledged": acknowledged} | overrides))
    assert reason(name, one, of=owner(keep_loaded=keep)) is expected


def test_loaded_generation_of_stream_without_targets_is_kept() -> None:
    one = published(acknowledged={"a": LONG_AGO})
    no_targets = replace(owner(keep_loaded=NO_TIME), targets=frozenset())
    assert reason(NAME, one, of=no_targets) is None


def test_generation_is_garbage_for_either_reason() -> None:
    of = owner(targets="a", keep_loaded=NO_TIME, keep_superseded=NO_TIME)
    replaced = published(replaced_at=LONG_AGO)
    loaded = published(id=8, acknowledged={"a": LONG_AGO})
    both = published(acknowledged={"a": LONG_AGO}, replaced_at=LONG_AGO)
    assert reason(NAME, both, of=of) is Reason.SUPERSEDED
    assert reason(NAME, both, of=of, folder=Folder.QUARANTINE) is Reason.SUPERSEDED
    assert reason(MANIFEST_FILE, replaced, loaded, of=of) is Reason.LOADED
    assert reason(MANIFEST_FILE, replaced, published(id=8), of=of) is None


def test_file_of_another_or_ambiguous_attempt_is_kept() -> None:
    other_ids = IdRange(first_id=4, last_id=6)
    for one in (attempt(stream="clicks"), attempt(stream=None), attempt(job="ders")):
        assert reason(NAME, one) is None
    assert reason(NAME, attempt(number=2)) is reason(NAME, attempt(ids=other_ids)) is None
    assert reason(NAME, attempt(), attempt(id=8)) is None
    other = attempt(id=8, ids=other_ids, status=AttemptStatus.RUNNING)
    assert reason(NAME, attempt(), other) is Reason.UNPUBLISHED


@pytest.mark.parametrize("name", [NAME, MANIFEST_FILE, NAME.replace("orders", "orders.2023")])
def test_unknown_file_is_reported_after_a_week(name: str) -> None:
    week = NOON - UNKNOWN_FOR
    assert reason(name) is Reason.UNKNOWN
    assert reason(name, modified_at=week) is None
    assert reason(name.replace("orders", "clicks")) is None
    assert reason(f"x{name}") is None


def test_file_of_ambiguous_stream_is_kept() -> None:
    one = stream(storage=Storage(root="file:///batches", prefix="x"))
    beside = stream(name="xorders")
    assert reason(f"x{NAME}", of=Owner.of(one, [beside], {})) is None
    elsewhere = replace(beside, storage=Storage(root="file:///elsewhere"))
    assert reason(f"x{NAME}", of=Owner.of(one, [elsewhere], {})) is Reason.UNKNOWN


def test_unfinished_manifest_file_is_garbage_after_a_day() -> None:
    name = f".{MANIFEST_FILE}-{HEX}.tmp"
    assert reason(name) is Reason.TEMPORARY
    assert reason(name, modified_at=NOON - SHORTEST_GRACE) is None
    assert reason(name.replace("orders", "clicks")) is None


def test_probe_is_garbage_after_a_day_for_one_stream_of_the_root() -> None:
    name = f".probe-{HEX}"
    assert reason(name, size_bytes=0) is Reason.TEMPORARY
    assert reason(name, size_bytes=0, modified_at=NOON - SHORTEST_GRACE) is None
    assert reason(name, size_bytes=1) is None
    assert reason(name, size_bytes=0, of=owner("refunds")) is Reason.TEMPORARY
    assert reason(name, size_bytes=0, of=owner("clicks")) is None


@pytest.mark.parametrize(
    ("keep", "overrides", "expected"),
    [
        (None, {}, None),
        (TEN_DAYS, {"ended_at": TEN_DAYS_AGO}, None),
        (NINE_DAYS, {"ended_at": TEN_DAYS_AGO}, Reason.QUARANTINED),
        (NO_TIME, {"ended_at": NOON - timedelta(hours=24)}, None),
        (None, {"quarantine_marked": True}, Reason.QUARANTINED),
    ],
)
def test_quarantine_file_is_garbage_after_keep_quarantine(
    keep: timedelta | None, overrides: dict[str, Any], expected: Reason | None
) -> None:
    """Files are kept for at least a day; part files and manifest files stay."""
    of, one = owner(keep_quarantine=keep), published(**overrides)
    assert reason(NAME, one, of=of, folder=Folder.QUARANTINE) is expected
    assert reason(NAME, one, of=of) is reason(MANIFEST_FILE, one, of=of) is None


durations = st.timedeltas(timedelta(0), timedelta(days=400))
ages = durations.map(lambda age: NOON - age)


@given(
    one=st.builds(
        attempt,
        status=st.sampled_from(AttemptStatus),
        lease=durations,
        ended_at=ages,
        generation=st.just(1),
        replaced_at=st.none() | ages,
        unread=st.booleans(),
        acknowledged=st.dictionaries(st.sampled_from("abc"), ages),
        held=st.booleans(),
        file_names=st.sampled_from([frozenset(), frozenset({NAME})]),
    ),
    keep=st.none() | durations,
    keep_loaded=st.none() | durations,
    modified_at=ages,
    name=st.sampled_from([NAME, MANIFEST_FILE]),
)
def test_live_file_is_never_garbage(
    one: KnownAttempt,
    keep: timedelta | None,
    keep_loaded: timedelta | None,
    modified_at: datetime,
    name: str,
) -> None:
    """Files of a running attempt or a live manifest are kept.

    A live generation is garbage only if all targets loaded it and no reader needs it. The attempt
    of any garbage ended more than a day and ten leases ago.
    """
    of = owner(keep_loaded=keep_loaded, keep_superseded=keep)
    found = reason(name, one, of=of, modified_at=modified_at)
    is_live = one.status is AttemptStatus.SUCCEEDED and one.replaced_at is None
    is_listed = name == MANIFEST_FILE or name in one.file_names
    if one.status is AttemptStatus.RUNNING:
        assert found is None
    if is_live and is_listed:
        assert found in {None, Reason.LOADED}
    if found is Reason.LOADED:
        assert keep_loaded is not None
        assert one.acknowledged.keys() >= {"a", "b"}
        assert all(NOON - one.acknowledged[name] > keep_loaded for name in ("a", "b"))
        assert not one.unread
        assert not one.held
    if found is Reason.SUPERSEDED:
        assert keep is not None
        assert one.replaced_at is not None
        assert not one.unread
    if found is not None:
        assert one.ended_at is not None
        assert NOON - one.ended_at > max(10 * one.lease, timedelta(hours=24))
        assert NOON - modified_at > timedelta(hours=24)


STEM = "orders-00000001-00000003-a2-12345678"
PART = f"{STEM}-00010000-abcdef01.jsonl.gz"
ATTEMPT_FILE = AttemptFile(head="orders", ids=IDS, number=2, token="12345678")  # noqa: S106 - no secret
FINISHED = ManifestFile(head="orders", ids=IDS, generation=1, finished=True)
ROOT = "file:///batches"


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
    [
        (Folder.ROOT, f"{STEM}-123450000-abcdef01.parquet", ATTEMPT_FILE),  # task 12345
        (Folder.ROOT, f".{STEM}-abcdef01.stop", ATTEMPT_FILE),
        (Folder.QUARANTINE, PART, ATTEMPT_FILE),
        (Folder.QUARANTINE, f".{PART}.tmp", ATTEMPT_FILE),
        (Folder.MANIFESTS, MANIFEST_FILE, FINISHED),
        (Folder.MANIFESTS, f".{MANIFEST_FILE}-{HEX}.tmp", replace(FINISHED, finished=False)),
        (Folder.ROOT, f".probe-{HEX}", Probe()),
    ],
)
def test_parse_name_of_known_file(folder: Folder, name: str, expected: object) -> None:
    assert parse_name(folder, name) == expected


def test_parse_name_of_other_file_is_none() -> None:
    others = {
        Folder.ROOT: [
            *(STEM, MANIFEST_FILE, f"{STEM}-00010000-abcdef01.csv"),
            *(f"{PART}.tmp", f".{PART}"),  # not hidden; hidden without .tmp
            *(PART.replace("-00010000-", "-0001-"), PART.replace("abcdef01", "ABCDEF01")),
            PART.replace("00000001-00000003", "00000003-00000001"),
            *(PART.replace("00000001-00000003", "1-3"), PART.removeprefix("orders")),
            PART.replace("-a2-", f"-a{'1' * 5000}-"),
        ],
        Folder.QUARANTINE: [f".{STEM}-abcdef01.stop", f".probe-{HEX}"],
        Folder.MANIFESTS: [
            *(PART, MANIFEST_FILE.replace(".g1", ".g0")),
            MANIFEST_FILE.replace(".g1", f".g{'1' * 5000}"),
        ],
    }
    for folder, names in others.items():
        assert [name for name in names if parse_name(folder, name) is not None] == []


@given(
    prefix=st.just("") | st.from_regex(STREAM_NAME, fullmatch=True),
    one=st.builds(
        batch,
        first_id=st.integers(0, 10**15),
        last_id=st.integers(10**15, 10**16),
        job=st.from_regex(STREAM_NAME, fullmatch=True),
    ),
    number=st.integers(1, 999),
    token=st.uuids(),
    task_and_part=st.tuples(st.integers(0, 99_999), st.integers(0, 99_999)),
    suffix=st.sampled_from(sorted(SUFFIXES)),
)
def test_names_of_attempt_files_round_trip(
    prefix: str, one: Batch, number: int, token: UUID, task_and_part: tuple[int, int], suffix: str
) -> None:
    attempt = Attempt(id=1, batch=one, number=number, token=token)
    task, part = task_and_part
    stem, execution = f"{prefix}{attempt.stem}", token.hex[-8:]
    names = PartNames(root=ROOT, stem=stem, task=task, execution=execution, suffix=suffix)
    flag = CancellationFlag.of(Storage(root=ROOT, prefix=prefix), attempt.stem, "0a1b2c3d")
    expected = AttemptFile(
        head=prefix + one.job, ids=one.id_range, number=number, token=token.hex[:8]
    )
    finished = names.name(part)
    for name in (finished, f".{finished}.tmp", flag.name):
        assert parse_name(Folder.ROOT, name) == expected


@settings(max_examples=20)
@given(
    prefix=st.just("") | st.from_regex(STREAM_NAME, fullmatch=True),
    job=st.from_regex(STREAM_NAME, fullmatch=True),
    generation=st.integers(1, 99),
)
def test_names_of_manifest_files_round_trip(
    tmp_path_factory: pytest.TempPathFactory, prefix: str, job: str, generation: int
) -> None:
    folder = tmp_path_factory.mktemp("batches")
    one = manifest(job=job, generation=generation)
    PartFileStorage(Storage(root=to_uri(folder), prefix=prefix)).point_to(one)
    [path] = (folder / "manifests").iterdir()
    assert parse_name(Folder.MANIFESTS, path.name) == ManifestFile(
        head=prefix + job, ids=IDS, generation=generation, finished=True
    )
