"""Parsing names of files in a storage root."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.cancellation import CancellationFlag
from batch_pipeline.encode.writers.part_writer import PartNames
from batch_pipeline.model.batch import Attempt, Batch, IdRange
from batch_pipeline.model.encoding import SUFFIXES
from batch_pipeline.model.garbage import AttemptFile, Folder, ManifestFile, Probe, parse_name
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import STREAM_NAME, Storage
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.factories import batch, manifest

STEM = "orders-00000001-00000003-a2-12345678"
PART = f"{STEM}-00010000-abcdef01.jsonl.gz"
MANIFEST_FILE = "orders-00000001-00000003.g1.json"
IDS = IdRange(first_id=1, last_id=3)
ATTEMPT_FILE = AttemptFile(head="orders", ids=IDS, number=2, token="12345678")  # noqa: S106 - no secret
FINISHED = ManifestFile(head="orders", ids=IDS, generation=1, finished=True)
ROOT = "file:///batches"
HEX = "0123456789abcdef0123456789abcdef"


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
