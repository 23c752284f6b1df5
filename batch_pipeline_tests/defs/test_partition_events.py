"""Error messages of runs with failed batches."""

import dagster as dg
import pytest

from batch_pipeline.defs.partition_events import WaitsError, raise_failures, summarize_errors
from batch_pipeline.model.errors import PipelineError, TargetFailedError


def failed(number: int) -> PipelineError:
    """Return the error of a failed batch."""
    return TargetFailedError(f"batch was not loaded: number-{number}.")


def test_many_errors_are_truncated_to_twenty() -> None:
    errors = [*map(failed, range(25)), WaitsError("a"), WaitsError("b")]
    text = summarize_errors(errors)
    assert text.count("was not loaded") == 20
    assert "number-19." in text
    assert "number-20." not in text
    assert text.endswith("; and 5 more; batches that wait for others: 2")


def test_failed_run_lists_twenty_batches_and_counts_all() -> None:
    failures = {str(number): failed(number) for number in range(25)}
    with pytest.raises(dg.Failure) as caught:
        raise_failures(failures | {"z": WaitsError("z")}, 100, done="loaded")
    description = str(caught.value.description)
    assert description.startswith("Batches failed: 25 of 100, those that do not wait are loaded: ")
    assert [*caught.value.metadata] == [str(number) for number in range(20)]


def test_failed_run_with_few_failures_lists_all() -> None:
    with pytest.raises(dg.Failure) as caught:
        raise_failures({"a": failed(1), "b": failed(2)}, 3)
    description = f"Batches failed: 2 of 3, others are published: {failed(1)}; {failed(2)}"
    assert caught.value.description == description
