"""A real feed: 1,781 daily files whose layout changes on the way, drained, added to, and killed."""

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
LATE_COLUMNS = {
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
    """Three runs: of all files but the last day's, after that one landed, and with nothing new.

    `files_before` and `files_after` are the files in storage around the third.
    """

    sandbox: Sandbox
    all_but_last: dict[str, Any]
    last_day: dict[str, Any]
    nothing_new: dict[str, Any]
    files_before: dict[str, tuple[int, int]]
    files_after: dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def feed(shared_sandbox: Sandbox, landing: Path, warm_spark: str) -> Feed:
    """The feed after its three runs, once as jsonl and once as parquet."""
    sandbox = shared_sandbox
    held_back = (landing / LAST_DAY).rename(sandbox.folder / LAST_DAY)
    write_streams(sandbox, landing)
    all_but_last = by_stream(sandbox.json_of("run"))
    held_back.rename(landing / LAST_DAY)
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
def test_run_on_the_feed_writes_every_record(feed: Feed, stream: str) -> None:
    done = feed.all_but_last[stream]
    records = [manifest["records"] for manifest in done["published"]]
    assert (done["files_found"], done["items_registered"]) == (FILES - 1, FILES - 1)
    assert (done["failed"], done["error"]) == ([], None)
    assert sum(one["written"] for one in records) == RECORDS - RECORDS_OF_LAST_DAY
    assert sum(one["read"] for one in records) == RECORDS - RECORDS_OF_LAST_DAY
    assert sum(one["quarantined"] for one in records) == 0


@pytest.mark.parametrize("stream", ["regions", "regions_parquet"])
def test_run_after_one_more_file_takes_that_file_alone(feed: Feed, stream: str) -> None:
    done = feed.last_day[stream]
    [published] = done["published"]
    assert (done["items_registered"], done["batches_planned"]) == (1, 1)
    assert published["batch_id"] == f"{FILES:08}-{FILES:08}"
    assert published["items"] == 1
    assert published["records"]["written"] == RECORDS_OF_LAST_DAY


def test_run_with_nothing_new_changes_nothing(feed: Feed) -> None:
    for done in feed.nothing_new.values():
        assert (done["files_found"], done["items_registered"]) == (FILES, 0)
        assert (done["batches_planned"], done["published"]) == (0, [])
    assert feed.files_after == feed.files_before


@pytest.mark.parametrize("stream", ["regions", "regions_parquet"])
def test_part_files_are_the_ones_that_the_manifests_describe(feed: Feed, stream: str) -> None:
    parts = list(part_files(feed.sandbox.storage(stream)))
    assert sum(part["records"] for part, _ in parts) == RECORDS
    for part, path in parts:
        assert (path.stat().st_size, sha256(path)) == (part["size_bytes"], part["sha256"])


def test_records_read_back_from_jsonl_add_up(feed: Feed) -> None:
    values = [record["totale_positivi"] for record in json_records(feed.sandbox.storage("regions"))]
    assert (len(values), sum(values)) == (RECORDS, SUM_OF_POSITIVES)


def test_records_read_back_from_parquet_add_up(feed: Feed) -> None:
    files = [path for _, path in part_files(feed.sandbox.storage("regions_parquet"))]
    columns = [pq.read_table(path, columns=["totale_positivi"])[0].to_pylist() for path in files]
    values = [value for column in columns for value in column]
    assert (len(values), sum(values)) == (RECORDS, SUM_OF_POSITIVES)


def test_records_from_before_the_layout_change_have_null_in_the_late_columns(feed: Feed) -> None:
    seen_later = set()
    older = 0
    for record in json_records(feed.sandbox.storage("regions")):
        filled = {name for name in LATE_COLUMNS if record.get(name) is not None}
        if record["data"] < FIRST_DAY_OF_NEW_LAYOUT:
            older += 1
            assert filled == set()
        seen_later |= filled
    assert older == 326 * 21
    assert seen_later == LATE_COLUMNS


def test_cells_with_line_breaks_stay_one_record(feed: Feed) -> None:
    """Two cells of the feed contain a line break."""
    broken = [
        value
        for record in json_records(feed.sandbox.storage("regions"))
        for value in record.values()
        if isinstance(value, str) and "\n" in value
    ]
    assert len(broken) == 2
