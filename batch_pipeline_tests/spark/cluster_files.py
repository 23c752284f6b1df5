"""Sixty small files that make three tasks, and what sessions make of them."""

from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from batch_pipeline_tests.spark.encode_fixture import EncodeRun, names, records

FILES = 60
TASK_ITEMS = 20  # for `packing.TASK_ITEMS`


def landed(folder: Path, session: SparkSession) -> EncodeRun:
    """Land sixty files of one record each; a part file holds seven records."""
    folder.mkdir()
    run = EncodeRun(folder, session)
    bounds = replace(run.stream.part_limits, max_records=7)
    run.stream = replace(run.stream, part_limits=bounds)
    for number in range(FILES):
        run.land(b"id,name\n%d,n%d\n" % (number, number))
    return run


def encoded(folder: Path, session: SparkSession) -> list[str]:
    """Encode the files, check each record, and give the digests of the part files in order."""
    run = landed(folder, session)
    result = run.encode(id="integer", name="string")
    assert [one["id"] for one in records(result.part_files)] == list(range(FILES))
    assert run.files() == sorted(names(result.part_files))
    assert len(result.part_files) == 9
    return [part.sha256 for part in result.part_files]
