"""What a run says of batches that failed: the first reasons, and how many more there are.

A run page shows a message whole, so thousands of reasons would hide the first. Nothing is judged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from batch_pipeline.model.errors import BatchDataError, PipelineError

MOST = 20


@dataclass(eq=False)
class WaitsError(BatchDataError):
    """A batch was not tried, since one that must come before it failed."""

    batch: str

    def sentence(self) -> str:
        return (
            f"{self.batch}: not tried, because an earlier batch has to be loaded first. Mend that "
            f"one; this one is loaded after it."
        )


def told(errors: Iterable[PipelineError]) -> str:
    """Give the first reasons; the rest is counted, and so are batches that only wait."""
    every = list(errors)
    blamed = [str(error) for error in every if not isinstance(error, WaitsError)]
    waiting = len(every) - len(blamed)
    counted = [
        *([f"and {len(blamed) - MOST} more"] if len(blamed) > MOST else []),
        *([f"batches that wait for others: {waiting}"] if waiting else []),
    ]
    return "; ".join([*blamed[:MOST], *counted])


def told_by_batch(failures: Mapping[str, PipelineError]) -> dict[str, str]:
    """Give the first reasons by batch, without those that only wait."""
    blamed = (
        (key, str(error)) for key, error in failures.items() if not isinstance(error, WaitsError)
    )
    return dict(islice(blamed, MOST))
