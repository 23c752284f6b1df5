"""What somebody found who looked whether things work: values and how a look ends, nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from batch_pipeline.domain.errors import InvariantError, PipelineError


class Level(StrEnum):
    """What a finding means for who works with it."""

    OK = "ok"
    WARN = "warn"  # it works; somebody should know
    FAIL = "fail"  # it does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at, what was found, and what to do where that is not all well."""

    subject: str
    level: Level
    text: str


def fine(subject: str, text: str) -> Finding:
    """Give the finding that something works."""
    return Finding(subject=subject, level=Level.OK, text=text)


def warning(subject: str, text: str) -> Finding:
    """Give the finding that something works, and somebody should know of it."""
    return Finding(subject=subject, level=Level.WARN, text=text)


def failure(subject: str, text: str) -> Finding:
    """Give the finding that something does not work."""
    return Finding(subject=subject, level=Level.FAIL, text=text)


def attempted(subject: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Look at something; what stops the looking is the last finding, and stops nothing else."""
    try:
        yield from look()
    except InvariantError:
        raise
    except PipelineError as error:
        yield failure(subject, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, the others are still looked at
        reason = str(error).partition("\n")[0] or "no reason given"
        text = f"this could not be looked at ({type(error).__name__}: {reason}). Please report it."
        yield warning(subject, text)
