"""The COVID-19 feed of Italy's regions: known totals, and its stream files."""

import tarfile
from pathlib import Path
from typing import Any

from batch_pipeline_tests.acceptance.sandbox import Sandbox

ARCHIVE = Path(__file__).parents[3] / "shared/data/italy-regions-daily.tar.gz"
FILES = 1_781
RECORDS = 37_401
SUM_OF_POSITIVES = 646_987_571


def unpack(folder: Path) -> None:
    """Extract the daily files into a folder."""
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            if member.isfile() and not member.name.endswith("-latest.csv"):
                member.name = Path(member.name).name
                archive.extract(member, folder, filter="data")


def write_streams(
    sandbox: Sandbox, landing: Path | str, *, only: str | None = None, root: str | None = None
) -> None:
    """Write the streams `regions` (jsonl) and `regions_parquet`, 12 batches each."""
    encodings = {
        "regions": {"format": "jsonl", "compression": "gzip"},
        "regions_parquet": {"format": "parquet", "compression": "zstd"},
    }
    for name, encoding in encodings.items():
        if only in {None, name}:
            sandbox.write_stream(
                name,
                source={"uri": str(landing), "include": ["dpc-*.csv"]},
                batch={"max_count": 150},
                encoding=encoding,
                storage={"root": root or str(sandbox.storage(name))},
                key_properties=["data", "codice_regione"],
            )


def by_stream(output: dict[str, Any]) -> dict[str, Any]:
    """Return the output of `run --json` by stream."""
    return {result["stream"]: result for result in output["streams"]}
