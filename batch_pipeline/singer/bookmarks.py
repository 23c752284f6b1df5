"""Bookmarks: how far a consumer has read each job of a stream, as STATE carries it.

Only values and their JSON; which manifests come after a bookmark is the inventory's to say.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batch_pipeline.domain.errors import ConfigurationError
from batch_pipeline.domain.id_range import MAX_ID
from batch_pipeline.domain.manifest import Manifest

_OTHERS = "other_jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """The publish number of the last manifest of each job that a consumer acknowledged.

    `last` is the manifest that was read last, by job, id of the batch and generation, where a state
    tells it.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    last: tuple[str, str, int] | None = field(default=None, compare=False)

    def after(self, manifest: Manifest, publish_number: int) -> "Bookmark":
        """Give the bookmark behind a manifest of one of the jobs."""
        job = manifest.batch.job
        last = (job, manifest.batch.label, manifest.generation)
        return Bookmark(numbers={**self.numbers, job: publish_number}, last=last)


@dataclass(eq=False)
class StateFileError(ConfigurationError):
    """A state file is not what a target printed."""

    path: str
    problem: str

    def sentence(self) -> str:
        return (
            f"{self.path}: {self.problem}. No message was written. Give the last STATE value that "
            f"the target printed, or leave --state out to start from the first batch."
        )


def bookmark_json(manifest: Manifest, bookmark: Bookmark) -> dict[str, Any]:
    """Write a bookmark: the manifest that was sent last, and the numbers of the other jobs."""
    job = manifest.batch.job
    others = {name: number for name, number in bookmark.numbers.items() if name != job}
    return {
        "job": job,
        "batch_id": manifest.batch.label,
        "generation": manifest.generation,
        "publish_number": bookmark.numbers[job],
        **({_OTHERS: others} if others else {}),
    }


def read_bookmark(path: Path, stream: str) -> Bookmark:
    """Read a stream's bookmark from a state file as targets print it.

    Raises:
        StateFileError: the file is missing, no JSON, or its bookmark is not one of ours.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StateFileError(str(path), f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise StateFileError(str(path), f"is no JSON ({error})") from error
    return bookmark_of(bookmarks_of(state, path=str(path)).get(stream), stream, path=str(path))


def bookmarks_of(state: Any, *, path: str) -> dict[str, Any]:
    """Give the bookmarks in a STATE value or message, by stream; none where it is empty.

    Raises:
        StateFileError: there are no bookmarks, though it is not empty.
    """
    value = state.get("value", state) if isinstance(state, dict) else None
    bookmarks = value.get("bookmarks", None if value else {}) if isinstance(value, dict) else None
    if not isinstance(bookmarks, dict):
        raise StateFileError(path, "has no object `bookmarks`")
    return bookmarks


def bookmark_of(written: Any, stream: str, *, path: str) -> Bookmark:
    """Read what `bookmark_json` wrote, None being the start; `path` is where it was found.

    Bookmarks of releases that sent the stream's own job only have a number and no other jobs.

    Raises:
        StateFileError: it is not one of ours.
    """
    if written is None:
        return Bookmark()
    if not isinstance(written, dict) or not _is_number(written.get("publish_number")):
        raise StateFileError(path, f"bookmark of {stream!r} has no `publish_number`")
    job, others = written.get("job", stream), written.get(_OTHERS, {})
    if not isinstance(job, str):
        raise StateFileError(path, f"bookmark of {stream!r} has a `job` that is no name")
    if not isinstance(others, dict) or not all(_is_number(one) for one in others.values()):
        raise StateFileError(path, f"bookmark of {stream!r} has no numbers in `{_OTHERS}`")
    label, generation = written.get("batch_id"), written.get("generation")
    last: tuple[str, str, int] | None = None
    if isinstance(label, str) and isinstance(generation, int):
        last = (job, label, generation)
    return Bookmark(numbers={**others, job: written["publish_number"]}, last=last)


def _is_number(found: Any) -> bool:
    return type(found) is int and 0 <= found <= MAX_ID
