"""A real feed of 1,781 daily files with a layout change: run, extended by a file, run again."""

import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batch_pipeline_tests.acceptance.conftest import ARCHIVE
from batch_pipeline_tests.acceptance.sandbox import (
    Sandbox,
    files_below,
    json_records,
    part_files,
    sha256,
)

pytestmark = pytest.mark.long

FILES = 1_781
RECORDS = 37_401
SUM_OF_POSITIVES = 646_987_571
RECORDS_OF_LAST_DAY = 21
LAST_DAY = "dpc-covid19-ita-regioni-20250108.csv"
ENCODINGS = {
    "regions": {"format": "jsonl", "compression": "gzip"},
    "regions_parquet": {"format": "parquet", "compression": "zstd"},
}
NEW_COLUMNS = {
    "totale_positivi_test_molecolare",
    "totale_positivi_test_antigenico_rapido",
    "tamponi_test_molecolare",
    "tamponi_test_antigenico_rapido",
    "codice_nuts_1",
    "codice_nuts_2",
}
FIRST_DAY_OF_NEW_LAYOUT = "2021-01-15"


def write_streams(sandbox: Sandbox, landing: Path) -> None:
    """Extract the daily files, and write two streams of three batches each."""
    landing.mkdir()
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            if member.isfile() and not member.name.endswith("-latest.csv"):
                member.name = Path(member.name).name
                archive.extract(member, landing, filter="data")
    for name, encoding in ENCODINGS.items():
        sandbox.write_stream(
            name,
            source={"uri": str(landing), "include": ["dpc-*.csv"]},
            batch={"max_count": 600},
            encoding=encoding,
            key_properties=["data", "codice_regione"],
        )


def test_real_feed_is_published_completely_and_extended_by_one_file(
    sandbox: Sandbox, warm_spark: str
) -> None:
    landing = sandbox.folder / "feed"
    write_streams(sandbox, landing)
    last_file = (landing / LAST_DAY).rename(sandbox.folder / LAST_DAY)
    sandbox = sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    for result in sandbox.json_of("run")["streams"]:
        records = [manifest["records"] for manifest in result["published"]]
        assert (result["files_found"], result["items_registered"]) == (FILES - 1, FILES - 1)
        assert (result["failed"], result["error"]) == ([], None)
        assert sum(counts["read"] for counts in records) == RECORDS - RECORDS_OF_LAST_DAY
        assert sum(counts["written"] for counts in records) == RECORDS - RECORDS_OF_LAST_DAY

    last_file.rename(landing / LAST_DAY)
    for result in sandbox.json_of("run")["streams"]:
        [published] = result["published"]
        assert (result["items_registered"], result["batches_planned"]) == (1, 1)
        assert (published["batch_id"], published["items"]) == (f"{FILES:08}-{FILES:08}", 1)
        assert published["records"]["written"] == RECORDS_OF_LAST_DAY

    files = files_below(sandbox.folder / "batches")
    for result in sandbox.json_of("run")["streams"]:
        assert (result["files_found"], result["items_registered"]) == (FILES, 0)
        assert (result["batches_planned"], result["published"]) == (0, [])
    assert files_below(sandbox.folder / "batches") == files

    for stream in ENCODINGS:
        parts = list(part_files(sandbox.storage(stream)))
        assert sum(part["records"] for part, _ in parts) == RECORDS
        for part, path in parts:
            assert (path.stat().st_size, sha256(path)) == (part["size_bytes"], part["sha256"])
    records = list(json_records(sandbox.storage("regions")))
    paths = [path for _, path in part_files(sandbox.storage("regions_parquet"))]
    columns = [pq.read_table(path, columns=["totale_positivi"])[0].to_pylist() for path in paths]
    in_parquet = [value for column in columns for value in column]
    for values in ([record["totale_positivi"] for record in records], in_parquet):
        assert (len(values), sum(values)) == (RECORDS, SUM_OF_POSITIVES)
    check_layout(records)


def check_layout(records: list[dict[str, Any]]) -> None:
    """Assert that only records after the layout change have the new columns.

    Two cells of the feed contain a line break.
    """
    filled = [{name for name, value in record.items() if value is not None} for record in records]
    older = [
        names
        for record, names in zip(records, filled, strict=True)
        if record["data"] < FIRST_DAY_OF_NEW_LAYOUT
    ]
    assert len(older) == 326 * 21
    assert not any(names & NEW_COLUMNS for names in older)
    assert set().union(*filled) >= NEW_COLUMNS
    values = [value for record in records for value in record.values()]
    assert sum(isinstance(value, str) and "\n" in value for value in values) == 2
