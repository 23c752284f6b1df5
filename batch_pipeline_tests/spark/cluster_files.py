"""Sixty small files that make three tasks, and what sessions make of them."""

from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from batch_pipeline_tests.spark.encode_fixture import Desk, names, records

FILES = 60
TASK_ITEMS = 20  # for `packing.TASK_ITEMS`


def landed(folder: Path, session: SparkSession) -> Desk:
    """Land sixty files of one record each; a part file holds seven records."""
    folder.mkdir()
    desk = Desk(folder, session)
    bounds = replace(desk.stream.part_limits, max_records=7)
    desk.stream = replace(desk.stream, part_limits=bounds)
    for number in range(FILES):
        desk.land(b"id,name\n%d,n%d\n" % (number, number))
    return desk


def encoded(folder: Path, session: SparkSession) -> list[str]:
    """Encode the files, check each record, and give the digests of the part files in order."""
    desk = landed(folder, session)
    result = desk.encode(id="integer", name="string")
    assert [one["id"] for one in records(result.part_files)] == list(range(FILES))
    assert desk.files() == sorted(names(result.part_files))
    assert len(result.part_files) == 9
    return [part.sha256 for part in result.part_files]
