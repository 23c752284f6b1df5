"""The examples of pybatchintory's documentation, with only the names changed."""

import pytest

from batch_pipeline import acquire_batch
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.client.client_tables import COLUMNS
from batch_pipeline_tests.seeds import query

REPORT = """
SELECT job, job_identifier, batch_id_start, batch_id_end, batch_weight, batch_count, attempt,
       status, logging, job_result_item
  FROM batch_pipeline.inventory ORDER BY id
"""
Processed = list[list[str]]


def test_manual_error_handling_example_stores_the_traceback(hundred_files: Database) -> None:
    def process_func(items: list[str]) -> None:
        raise ValueError(f"cannot read {items[0]}")

    batch = acquire_batch(
        meta_table_name="meta_table",
        meta_table_cols=COLUMNS,
        job="incremental_job",
        job_identifier="run-7",
        batch_weight=10,
    )
    assert batch is not None
    with pytest.raises(ValueError, match="cannot read file-1"):  # noqa: PT012 - the example itself
        try:
            process_func(batch.items)
            batch.succeeded()
        except Exception as e:
            batch.failed(e)
            raise
    ((*columns, logging, _),) = query(hundred_files, REPORT)
    assert columns == ["incremental_job", "run-7", 1, 1, 10, 1, 1, "failed"]
    assert logging.startswith("ValueError: cannot read file-1\n")
    assert 'raise ValueError(f"cannot read {items[0]}")' in logging


def test_automatic_error_handling_example_stores_and_raises(hundred_files: Database) -> None:
    def func(items: list[str], suffix: str, *, times: int) -> dict[str, object]:
        if suffix == "bad":
            raise RuntimeError("no such suffix")
        return {"written": [item + suffix for item in items] * times}

    for suffix in (".gz", "bad"):
        batch = acquire_batch(
            meta_table_name="meta_table",
            meta_table_cols=COLUMNS,
            job="incremental_job",
            batch_weight=10,
        )
        assert batch is not None
        if suffix == "bad":
            with pytest.raises(RuntimeError, match="no such suffix"):
                batch.process(func, suffix, times=1)
        else:
            assert batch.process(func, suffix, times=2) == {"written": ["file-1.gz", "file-1.gz"]}
    succeeded, failed = query(hundred_files, REPORT)
    assert succeeded[-3:] == ("succeeded", None, {"written": ["file-1.gz", "file-1.gz"]})
    assert failed[2] == 2
    assert failed[-3] == "failed"
    assert failed[-2].startswith("RuntimeError: no such suffix")
