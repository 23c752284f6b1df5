"""A large csv file, split into items: a run that was killed half-way is resumed."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from batch_pipeline_tests.acceptance.sandbox import (
    Sandbox,
    files_below,
    json_records,
    kill_group,
    manifests,
    new_sandbox,
    wait_until,
)

pytestmark = pytest.mark.long

RECORDS = 300_000  # of 120 bytes
ITEM = "4MiB"
NOTE = 'a ""quoted"" note,\nover two lines, ' + "x" * 60
SLOW = "encode.before_publish=sleep:1"  # so that the run is killed before its end


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedRun:
    """The files that a killed run had published, and the storage after the next run."""

    sandbox: Sandbox
    batches: int
    before: dict[str, tuple[int, int]]
    published_before: int

    @property
    def storage(self) -> Path:
        """The storage root of the stream."""
        return self.sandbox.storage("big")


def write_csv(path: Path, records: int) -> int:
    """Write a csv file with quotes and line breaks in cells; return its size in bytes."""
    path.parent.mkdir(parents=True)
    with path.open("w", encoding="utf-8") as file:
        file.write("id,day,note\n")
        for first in range(0, records, 10_000):
            numbers = range(first, min(first + 10_000, records))
            file.writelines(f'{number},2026-01-31,"{NOTE}"\n' for number in numbers)
    return path.stat().st_size


def kill_and_resume(sandbox: Sandbox, records: int, item: str, *, after: int) -> ResumedRun:
    """Kill a run and its processes once some batches are published, and run again."""
    sandbox.write_stream(
        "big", source={"max_item_size": item}, batch={"max_weight": item, "max_count": 1}
    )
    write_csv(sandbox.landing("big") / "big.csv", records)
    process = sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS=SLOW).start("run")
    storage = sandbox.storage("big")
    wait_until(
        lambda: process.poll() is not None or len(manifests(storage)) >= after,
        f"{after} batches are published",
    )
    assert process.poll() is None, sandbox.output.read_text()
    kill_group(process)
    assert process.returncode == -signal.SIGKILL
    published = [path for path in files_below(storage) if "/manifests/" in path]
    parts = [part["uri"] for manifest in manifests(storage) for part in manifest["part_files"]]
    wait_until(lambda: not _has_workers(sandbox), "JVM and workers end")
    published_files = {*published, *(uri.removeprefix("file://") for uri in parts)}
    before = {path: stat for path, stat in files_below(storage).items() if path in published_files}
    [result] = sandbox.json_of("run")["streams"]
    assert (result["failed"], result["error"]) == ([], None)
    return ResumedRun(
        sandbox=sandbox,
        batches=len(manifests(storage)),
        before=before,
        published_before=len(published),
    )


def _has_workers(sandbox: Sandbox) -> bool:
    return any("postgres" not in process.name() for process in sandbox.processes())


@pytest.fixture(scope="module")
def resumed() -> Iterator[ResumedRun]:
    """A resumed run on a file of 36 MB in items of 4 MiB."""
    with new_sandbox() as sandbox:
        yield kill_and_resume(sandbox, RECORDS, ITEM, after=3)


def test_every_record_is_published_once_and_in_order(resumed: ResumedRun) -> None:
    note = NOTE.replace('""', '"')
    number = -1
    for number, record in enumerate(json_records(resumed.storage)):
        assert record == {"id": number, "day": "2026-01-31", "note": note}
    assert number == RECORDS - 1


def test_published_batches_are_not_encoded_again(resumed: ResumedRun) -> None:
    attempts = [manifest["attempt"] for manifest in manifests(resumed.storage)]
    assert 3 <= resumed.published_before < len(attempts) == resumed.batches
    assert attempts[: resumed.published_before] == [1] * resumed.published_before
    assert [attempt for attempt in attempts if attempt > 1] in ([], [2])
    now = files_below(resumed.storage)
    assert {path: now[path] for path in resumed.before} == resumed.before


def test_explain_shows_the_byte_range_of_an_item(resumed: ResumedRun) -> None:
    items = resumed.sandbox.json_of("explain", "big.csv")["items"]
    assert len(items) == resumed.batches
    assert items[0]["range"]["first"] == 0
    ends = [item["range"]["last"] for item in items]
    assert [item["range"]["first"] for item in items[1:]] == [last + 1 for last in ends[:-1]]
    assert ends[-1] == items[0]["size_bytes"] - 1
    output = resumed.sandbox.output_of("explain", "1")
    assert f"bytes 0 to {ends[0]} of " in output
    assert "unchanged since" in output
