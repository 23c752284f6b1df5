"""A large csv file, split into items: a run that was killed half-way is resumed."""

import signal
from pathlib import Path

import pytest

from batch_pipeline_tests.acceptance.sandbox import (
    Sandbox,
    files_below,
    json_records,
    kill_group,
    manifests,
    part_files,
    wait_until,
)

pytestmark = pytest.mark.long

RECORDS = 300_000  # of 120 bytes
ITEM = "4MiB"
NOTE = 'a ""quoted"" note,\nover two lines, ' + "x" * 60
SLOW = "encode.before_publish=sleep:1"  # so that the run is killed before its end


def write_csv(path: Path, records: int) -> None:
    """Write a csv file with quotes and line breaks in cells."""
    path.parent.mkdir(parents=True)
    with path.open("w", encoding="utf-8") as file:
        file.write("id,day,note\n")
        for first in range(0, records, 10_000):
            numbers = range(first, min(first + 10_000, records))
            file.writelines(f'{number},2026-01-31,"{NOTE}"\n' for number in numbers)


def test_killed_run_on_a_large_file_is_resumed(sandbox: Sandbox) -> None:
    """A file of 36 MB in items of 4 MiB; published batches are not encoded again."""
    batch = {"max_weight": ITEM, "max_count": 1}
    sandbox.write_stream("big", source={"max_item_size": ITEM}, batch=batch)
    write_csv(sandbox.landing("big") / "big.csv", RECORDS)
    storage = sandbox.storage("big")
    process = sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS=SLOW).start("run")
    wait_until(
        lambda: process.poll() is not None or len(manifests(storage)) >= 3, "3 are published"
    )
    assert process.poll() is None, sandbox.output.read_text()
    kill_group(process)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not _has_workers(sandbox), "JVM and workers end")
    before = manifests(storage)
    files = {str(path) for _, path in part_files(storage)}
    stats = {
        path: stat
        for path, stat in files_below(storage).items()
        if path in files or "/manifests/" in path
    }
    [result] = sandbox.json_of("run")["streams"]
    assert (result["failed"], result["error"]) == ([], None)

    attempts = [manifest["attempt"] for manifest in manifests(storage)]
    assert 3 <= len(before) < len(attempts)
    assert manifests(storage)[: len(before)] == before
    assert [attempt for attempt in attempts if attempt > 1] in ([], [2])
    now = files_below(storage)
    assert {path: now[path] for path in stats} == stats
    note = NOTE.replace('""', '"')
    number = -1
    for number, record in enumerate(json_records(storage)):
        assert record == {"id": number, "day": "2026-01-31", "note": note}
    assert number == RECORDS - 1

    items = sandbox.json_of("explain", "big.csv")["items"]
    assert len(items) == len(attempts)
    ends = [item["range"]["last"] for item in items]
    assert [item["range"]["first"] for item in items] == [0, *(last + 1 for last in ends[:-1])]
    assert ends[-1] == items[0]["size_bytes"] - 1
    output = sandbox.output_of("explain", "1")
    assert f"bytes 0 to {ends[0]} of " in output
    assert "unchanged since" in output


def _has_workers(sandbox: Sandbox) -> bool:
    return any("postgres" not in process.name() for process in sandbox.processes())
