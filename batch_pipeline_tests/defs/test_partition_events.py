"""What runs say of batches that failed: enough to go on with, however many there are."""

import dagster as dg
import pytest

from batch_pipeline.defs.partition_events import WaitsError, raise_failures, summarize_errors
from batch_pipeline.model.errors import PipelineError, TargetFailedError


def failed(number: int) -> PipelineError:
    """A batch that failed, known by a number."""
    return TargetFailedError(f"batch was not loaded: number-{number}.")


def test_reasons_of_few_batches_are_all_told() -> None:
    """Expect both, one after the other."""
    assert summarize_errors([failed(1), failed(2)]) == f"{failed(1)}; {failed(2)}"


def test_reasons_of_many_batches_are_the_first_twenty_and_a_count() -> None:
    """Expect 20 of 25, and batches that only wait to be counted."""
    errors = [*map(failed, range(25)), WaitsError("a"), WaitsError("b")]
    text = summarize_errors(errors)
    assert text.count("was not loaded") == 20
    assert "number-19." in text
    assert "number-20." not in text
    assert text.endswith("; and 5 more; batches that wait for others: 2")


def test_run_that_failed_names_twenty_batches_and_counts_all() -> None:
    """Expect the numbers of all in the sentence and the first reasons by batch beside it."""
    failures = {str(number): failed(number) for number in range(25)}
    with pytest.raises(dg.Failure) as caught:
        raise_failures(failures | {"z": WaitsError("z")}, 100, done="loaded")
    said = str(caught.value.description)
    assert said.startswith("Batches failed: 25 of 100, those that do not wait are loaded: ")
    assert [*caught.value.metadata] == [str(number) for number in range(20)]
