"""Bookmarks: how far a consumer has read each job of a stream, as stored in STATE.

`Bookmark` is the value, `bookmark_json` writes it and `parse_bookmark` reads it. This module
handles values and JSON only; the inventory finds the manifests that follow a bookmark.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.id_range import MAX_ID
from batch_pipeline.model.manifest import Manifest

_OTHERS = "other_jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """The publish number of the last acknowledged manifest of each job.

    `last` identifies the manifest that was read last by job, batch id and generation, if the state
    contains it.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    last: tuple[str, str, int] | None = field(default=None, compare=False)

    def after(self, manifest: Manifest, publish_number: int) -> "Bookmark":
        """Return the bookmark that follows a manifest of one of the jobs."""
        job = manifest.batch.job
        last = (job, manifest.batch.label, manifest.generation)
        return Bookmark(numbers={**self.numbers, job: publish_number}, last=last)


def bookmark_json(manifest: Manifest, bookmark: Bookmark) -> dict[str, Any]:
    """Return the JSON of a bookmark: the last manifest sent and the numbers of other jobs."""
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
    """Read a stream's bookmark from a state file as printed by targets.

    Raises:
        ConfigurationError: the file is missing, not valid JSON, or has an invalid bookmark.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise state_file_unusable(str(path), f"cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise state_file_unusable(str(path), f"is not JSON ({error})") from error
    return parse_bookmark(
        parse_bookmarks(state, path=str(path)).get(stream), stream, path=str(path)
    )


def parse_bookmarks(state: Any, *, path: str) -> dict[str, Any]:
    """Return the bookmarks of a STATE value or message by stream; empty for an empty state.

    Raises:
        ConfigurationError: the state is not empty and has no bookmarks.
    """
    value = state.get("value", state) if isinstance(state, dict) else None
    bookmarks = value.get("bookmarks", None if value else {}) if isinstance(value, dict) else None
    if not isinstance(bookmarks, dict):
        raise state_file_unusable(path, "has no object `bookmarks`")
    return bookmarks


def parse_bookmark(written: Any, stream: str, *, path: str) -> Bookmark:
    """Parse the output of `bookmark_json`; None is the start. `path` is used in errors only.

    Earlier releases, which sent only the stream's own job, wrote a number and no other jobs.

    Raises:
        ConfigurationError: the value is not a bookmark of this tap.
    """
    if written is None:
        return Bookmark()
    if not isinstance(written, dict) or not _is_number(written.get("publish_number")):
        raise state_file_unusable(path, f"bookmark of {stream!r} has no `publish_number`")
    job, others = written.get("job", stream), written.get(_OTHERS, {})
    if not isinstance(job, str):
        raise state_file_unusable(path, f"bookmark of {stream!r} has a `job` that is not a name")
    if not isinstance(others, dict) or not all(_is_number(number) for number in others.values()):
        raise state_file_unusable(path, f"bookmark of {stream!r} has no numbers in `{_OTHERS}`")
    label, generation = written.get("batch_id"), written.get("generation")
    last: tuple[str, str, int] | None = None
    if isinstance(label, str) and isinstance(generation, int):
        last = (job, label, generation)
    return Bookmark(numbers={**others, job: written["publish_number"]}, last=last)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ID


def state_file_unusable(path: str, problem: str) -> ConfigurationError:
    """Build the error for an unusable state file."""
    return ConfigurationError(
        f"{path}: {problem}. No message was written. Use the last STATE value that "
        f"the target printed, or omit --state to start from the first batch."
    )
