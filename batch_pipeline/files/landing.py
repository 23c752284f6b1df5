"""Listing a landing folder on a local disk, and telling how a file stands now.

A file counts as landed when it has a final name and has rested for a moment: names that start with
a dot or end in `.tmp`, `.part` or `~` are somebody's unfinished work, and so is a file whose size
still changes.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from batch_pipeline.domain.errors import (
    InvalidValueError,
    LandingUnavailableError,
    LinkLeadsOutError,
    PipelineError,
)
from batch_pipeline.domain.item import FoundFile, modified_at
from batch_pipeline.domain.location import to_path, to_uri
from batch_pipeline.domain.stream import Source, Stream
from batch_pipeline.files.wanted import UNFINISHED, is_chosen, why_unwanted
from batch_pipeline.stores.facts import look
from batch_pipeline.stores.failures import reason_of
from batch_pipeline.stores.within import leads_out

REST_SECONDS = 1.0
NOT_YET = "there and not registered yet: `batch-pipeline run` takes it"


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLanding:
    """The landing folder of a stream, with all folders below it.

    `wait` makes a listing wait for the youngest files to come to rest instead of leaving them for
    the next listing. `troubles` has the first link of the last listing that leads to a place that
    the stream does not read from.
    """

    stream: Stream
    wait: bool
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    troubles: list[PipelineError] = field(default_factory=list, init=False, compare=False)

    def found_files(self) -> Iterator[FoundFile]:
        """List complete files in location order.

        Raises:
            LandingUnavailableError: the folder is not there or cannot be read.
        """
        for path in self.paths():
            found = self.rested(path)
            if found is not None:
                yield found[1]

    def paths(self, is_passed_over: Callable[[os.DirEntry[str]], bool] | None = None) -> list[str]:
        """List the paths of files with a wanted name in order, also of those that do not rest yet.

        What `is_passed_over` says so of is left out before anything else is asked.

        Raises:
            LandingUnavailableError: the folder is not there or cannot be read.
        """
        root = Path(to_path(self._source.uri))
        self.troubles.clear()
        try:
            return sorted(self._paths(root, is_passed_over or _nothing))
        except OSError as error:
            raise LandingUnavailableError(
                self.stream.name, self._source.uri, reason_of(error)
            ) from error

    def compare(self, registered: FoundFile) -> str:
        """Say in words how the file of an item stands now."""
        return compare(registered)

    def why_not(self, file: str) -> str:
        """Say in words why a file is not, or not yet, one that this landing lists."""
        root = Path(to_path(self._source.uri))
        path = Path(to_path(file)) if file.startswith("file:") else Path(file)
        path = Path(os.path.normpath(path.absolute() if path.exists() else root / path))
        if not path.is_relative_to(root):
            return "the file lies outside this folder"
        if not path.is_file():
            return "no such file in this folder"
        if path.is_symlink() and leads_out(str(path), self._source.within):
            return "a link that leads out of this folder, and not into one of `source.roots`"
        return why_unwanted(self._source, str(path.relative_to(root))) or NOT_YET

    @property
    def _source(self) -> Source:
        source = self.stream.source
        if not isinstance(source, Source):
            raise InvalidValueError("source", source.place, "a landing folder")
        return source

    def _paths(
        self, folder: Path, is_passed_over: Callable[[os.DirEntry[str]], bool], below: str = ""
    ) -> Iterator[str]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_passed_over(entry):
                    continue
                name = below + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith("."):
                        yield from self._paths(Path(entry.path), is_passed_over, f"{name}/")
                elif (
                    _is_file(entry)
                    and self._is_wanted(entry.name, name)
                    and not self._is_led_out(entry)
                ):
                    yield entry.path

    def _is_led_out(self, entry: os.DirEntry[str]) -> bool:
        is_outside = entry.is_symlink() and leads_out(entry.path, self._source.within)
        if is_outside and not self.troubles:
            self.troubles.append(LinkLeadsOutError(self.stream.name, entry.path))
        return is_outside

    def _is_wanted(self, name: str, relative: str) -> bool:
        if any(fnmatchcase(name, pattern) for pattern in UNFINISHED):
            return False
        return is_chosen(self._source, name, relative)

    def rested(self, path: str) -> tuple[os.stat_result, FoundFile] | None:
        """Look at a file until it has rested; None when it is gone or still busy.

        Raises:
            LandingUnavailableError: it cannot be looked at.
        """
        while True:
            try:
                stat = os.stat(path)  # noqa: PTH116 - half the cost of Path.stat over 100,000 files
            except (FileNotFoundError, NotADirectoryError):  # its folder may be a file by now
                return None
            except OSError as error:
                reason = f"{path}: {reason_of(error)}"
                raise LandingUnavailableError(self.stream.name, self._source.uri, reason) from error
            age = self.now() - stat.st_mtime_ns / 1e9
            if not 0 <= age < REST_SECONDS:
                return stat, FoundFile(
                    location=to_uri(path), size_bytes=stat.st_size, modified_at=modified_at(stat)
                )
            if not self.wait:
                return None
            self.sleep(REST_SECONDS - age + 0.01)


def compare(file: FoundFile) -> str:
    """Say in words how a file stands now, beside what was noted of it."""
    try:
        now = look(file.location)
    except InvalidValueError as error:
        return f"which is not {error.expected}"
    except OSError as error:
        return f"now it cannot be read ({reason_of(error)})"
    if file.size_bytes is None:
        return f"now {now.size_bytes} B, modified {now.modified_at.isoformat()}"
    same = (now.size_bytes, now.modified_at) == (file.size_bytes, file.modified_at)
    if now.etag is not None and file.etag is not None:
        same = (now.size_bytes, now.etag) == (file.size_bytes, file.etag)
    return "unchanged since" if same else f"changed since: now {now.size_bytes} B"


def _nothing(_entry: os.DirEntry[str]) -> bool:
    return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        if entry.is_symlink():
            return False  # a circle, or a target out of reach: no file has landed here
        raise
