"""A real feed of 1,781 daily files with a layout change: run, extended by a file, run again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batch_pipeline_tests.acceptance.regions import (
    FILES,
    RECORDS,
    SUM_OF_POSITIVES,
    by_stream,
    write_streams,
)
from batch_pipeline_tests.acceptance.sandbox import (
    Sandbox,
    files_below,
    json_records,
    part_files,
    sha256,
)

RECORDS_OF_LAST_DAY = 21
LAST_DAY = "dpc-covid19-ita-regioni-20250108.csv"
NEW_COLUMNS = {
    "totale_positivi_test_molecolare",
    "totale_positivi_test_antigenico_rapido",
    "tamponi_test_molecolare",
    "tamponi_test_antigenico_rapido",
    "codice_nuts_1",
    "codice_nuts_2",
}
FIRST_DAY_OF_NEW_LAYOUT = "2021-01-15"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Three runs: on all files but the last day's, after that one landed, and without new files.

    `files_before` and `files_after` are the stored files before and after the third run.
    """

    sandbox: Sandbox
    all_but_last: dict[str, Any]
    last_day: dict[str, Any]
    nothing_new: dict[str, Any]
    files_before: dict[str, tuple[int, int]]
    files_after: dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def feed(shared_sandbox: Sandbox, landing: Path, warm_spark: str) -> Feed:
    """The feed after the three runs, as jsonl and as parquet."""
    sandbox = shared_sandbox
    last_file = (landing / LAST_DAY).rename(sandbox.folder / LAST_DAY)
    write_streams(sandbox, landing)
    all_but_last = by_stream(sandbox.json_of("run"))
    last_file.rename(landing / LAST_DAY)
    last_day = by_stream(
        sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark).json_of("run")
    )
    before = files_below(sandbox.folder / "batches")
    nothing_new = by_stream(sandbox.json_of("run"))
    return Feed(
        sandbox=sandbox,
        all_but_last=all_but_last,
        last_day=last_day,
        nothing_new=nothing_new,
        files_before=before,
        files_after=files_below(sandbox.folder / "batches"),
    )


@pytest.mark.parametrize("stream", ["regions", "regions_parquet"])
def test_first_run_writes_every_record(feed: Feed, stream: str) -> None:
    result = feed.all_but_last[stream]
    records = [manifest["records"] for manifest in result["published"]]
    assert (result["files_found"], result["items_registered"]) == (FILES - 1, FILES - 1)
    assert (result["failed"], result["error"]) == ([], None)
    assert sum(counts["written"] for counts in records) == RECORDS - RECORDS_OF_LAST_DAY
    assert sum(counts["read"] for counts in records) == RECORDS - RECORDS_OF_LAST_DAY
    assert sum(counts["quarantined"] for counts in records) == 0


@pytest.mark.parametrize("stream", ["regions", "regions_parquet"])
def test_run_after_a_new_file_encodes_only_that_file(feed: Feed, stream: str) -> None:
    result = feed.last_day[stream]
    [published] = result["published"]
    assert (result["items_registered"], result["batches_planned"]) == (1, 1)
    assert published["batch_id"] == f"{FILES:08}-{FILES:08}"
    assert published["items"] == 1
    assert published["records"]["written"] == RECORDS_OF_LAST_DAY


def test_run_without_new_files_changes_nothing(feed: Feed) -> None:
    for result in feed.nothing_new.values():
        assert (result["files_found"], result["items_registered"]) == (FILES, 0)
        assert (result["batches_planned"], result["published"]) == (0, [])
    assert feed.files_after == feed.files_before


@pytest.mark.parametrize("stream", ["regions", "regions_parquet"])
def test_part_files_match_their_manifests(feed: Feed, stream: str) -> None:
    parts = list(part_files(feed.sandbox.storage(stream)))
    assert sum(part["records"] for part, _ in parts) == RECORDS
    for part, path in parts:
        assert (path.stat().st_size, sha256(path)) == (part["size_bytes"], part["sha256"])


def test_jsonl_records_are_complete(feed: Feed) -> None:
    values = [record["totale_positivi"] for record in json_records(feed.sandbox.storage("regions"))]
    assert (len(values), sum(values)) == (RECORDS, SUM_OF_POSITIVES)


def test_parquet_records_are_complete(feed: Feed) -> None:
    files = [path for _, path in part_files(feed.sandbox.storage("regions_parquet"))]
    columns = [pq.read_table(path, columns=["totale_positivi"])[0].to_pylist() for path in files]
    values = [value for column in columns for value in column]
    assert (len(values), sum(values)) == (RECORDS, SUM_OF_POSITIVES)


def test_records_before_the_layout_change_lack_the_new_columns(feed: Feed) -> None:
    filled_columns = set()
    older = 0
    for record in json_records(feed.sandbox.storage("regions")):
        filled = {name for name in NEW_COLUMNS if record.get(name) is not None}
        if record["data"] < FIRST_DAY_OF_NEW_LAYOUT:
            older += 1
            assert filled == set()
        filled_columns |= filled
    assert older == 326 * 21
    assert filled_columns == NEW_COLUMNS


def test_cells_with_line_breaks_stay_one_record(feed: Feed) -> None:
    """Two cells of the feed contain a line break."""
    with_line_break = [
        value
        for record in json_records(feed.sandbox.storage("regions"))
        for value in record.values()
        if isinstance(value, str) and "\n" in value
    ]
    assert len(with_line_break) == 2
