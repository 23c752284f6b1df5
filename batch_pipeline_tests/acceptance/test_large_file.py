"""One large csv file, cut into items: a run that is killed half-way goes on where it was."""

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
SLOW = "encode.before_publish=sleep:1"  # so that the run is not over when the signal comes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What a killed run had published, and what the next one made of the rest."""

    sandbox: Sandbox
    batches: int
    before: dict[str, tuple[int, int]]
    published_before: int

    @property
    def storage(self) -> Path:
        """Where the batches are."""
        return self.sandbox.storage("big")


def write_csv(path: Path, records: int) -> int:
    """Write a csv file with quotes and line breaks in cells, and give its size in bytes."""
    path.parent.mkdir(parents=True)
    with path.open("w", encoding="utf-8") as file:
        file.write("id,day,note\n")
        for first in range(0, records, 10_000):
            numbers = range(first, min(first + 10_000, records))
            file.writelines(f'{one},2026-01-31,"{NOTE}"\n' for one in numbers)
    return path.stat().st_size


def killed_and_resumed(sandbox: Sandbox, records: int, item: str, *, after: int) -> Resumed:
    """Kill a run with all that it started once some batches are published, and run again."""
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
    done = [path for path in files_below(storage) if "/manifests/" in path]
    parts = [part["uri"] for one in manifests(storage) for part in one["part_files"]]
    wait_until(lambda: not _works(sandbox), "JVM and workers end")
    kept = {*done, *(uri.removeprefix("file://") for uri in parts)}
    before = {path: facts for path, facts in files_below(storage).items() if path in kept}
    [told] = sandbox.json_of("run")["streams"]
    assert (told["failed"], told["error"]) == ([], None)
    return Resumed(
        sandbox=sandbox,
        batches=len(manifests(storage)),
        before=before,
        published_before=len(done),
    )


def _works(sandbox: Sandbox) -> bool:
    return any("postgres" not in process.name() for process in sandbox.processes())


@pytest.fixture(scope="module")
def resumed() -> Iterator[Resumed]:
    """A file of 36 MB in items of 4 MiB."""
    with new_sandbox() as sandbox:
        yield killed_and_resumed(sandbox, RECORDS, ITEM, after=3)


def test_every_record_of_the_file_is_there_once_and_in_order(resumed: Resumed) -> None:
    note = NOTE.replace('""', '"')
    number = -1
    for number, record in enumerate(json_records(resumed.storage)):
        assert record == {"id": number, "day": "2026-01-31", "note": note}
    assert number == RECORDS - 1


def test_finished_batches_are_not_done_again(resumed: Resumed) -> None:
    attempts = [one["attempt"] for one in manifests(resumed.storage)]
    assert 3 <= resumed.published_before < len(attempts) == resumed.batches
    assert attempts[: resumed.published_before] == [1] * resumed.published_before
    assert [one for one in attempts if one > 1] in ([], [2])
    now = files_below(resumed.storage)
    assert {path: now[path] for path in resumed.before} == resumed.before


def test_explain_tells_which_bytes_of_the_file_an_item_is(resumed: Resumed) -> None:
    items = resumed.sandbox.json_of("explain", "big.csv")["items"]
    assert len(items) == resumed.batches
    assert items[0]["range"]["first"] == 0
    ends = [one["range"]["last"] for one in items]
    assert [one["range"]["first"] for one in items[1:]] == [last + 1 for last in ends[:-1]]
    assert ends[-1] == items[0]["size_bytes"] - 1
    told = resumed.sandbox.output_of("explain", "1")
    assert f"bytes 0 to {ends[0]} of " in told
    assert "unchanged since" in told
