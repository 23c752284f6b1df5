"""The landing of a stream: which files have landed, and why others are left out.

A file counts as landed when it has a final name and is complete: names that start with a dot or end
in `.tmp`, `.part` or `~` mark unfinished files, and a file that changed within the settle time of
its file system counts as unfinished, too. Empty objects that represent folders are left out.
"""

import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache

from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    LandingUnavailableError,
    PipelineError,
)
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import shown, split_location
from batch_pipeline.model.stream import Source, Stream
from batch_pipeline.storage.filesystem import (
    FileFacts,
    FileSystem,
    IsKnown,
    ListedFile,
    UnreachableError,
    filesystem_of,
    raise_as,
    reason_of,
)

UNFINISHED = (".*", "*.tmp", "*.part", "*~")
_HIDDEN_FOLDER = r"(?s:.*/)?\.[^/]*/"
_PARALLEL_HEADS = 8
_MAX_WAIT_SECONDS = 5
_MAX_SKEW_SECONDS = 60  # by which the clock of a file server may be ahead
Examined = FileFacts | PipelineError | None  # None: left out by a rule; an error: reported later


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLanding:
    """The files of a stream below the URI of its source.

    `wait` makes a listing wait for files to settle instead of leaving them to the next listing. It
    does so only in its first seconds, since a file may be written without end.
    `troubles` holds the error of the first file that the last listing of all files had to exclude.
    """

    stream: Stream
    wait: bool = False
    filesystem: FileSystem | None = None  # None: that of the source's URI
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    troubles: list[PipelineError] = field(default_factory=list, init=False, compare=False)

    @property
    def source(self) -> Source:
        """The landing as the stream file describes it."""
        source = self.stream.source
        if not isinstance(source, Source):
            raise InvalidValueError("source", source.place, "a landing folder")
        return source

    @property
    def files(self) -> FileSystem:
        """The file system that is listed."""
        return self.filesystem or filesystem_of(self.source.uri)

    def found_files(self) -> Iterator[LandedFile]:
        """List complete files in the byte order of their names.

        Raises:
            LandingUnavailableError: the landing is missing, cannot be reached, or refuses access.
        """
        self.troubles.clear()
        for name, examined in self.examined():
            if isinstance(examined, FileFacts):
                yield self.found(name, examined)
            elif examined is not None and not self.troubles:
                self.troubles.append(examined)

    def examined(
        self, after: str = "", is_known: IsKnown | None = None
    ) -> Generator[tuple[str, Examined]]:
        """List all names after `after`, each with its facts, or the error that excludes it.

        Files that `is_known` accepts are left out.

        Raises:
            LandingUnavailableError: the landing is missing, cannot be reached, or refuses access.
        """
        files, wanted = self.files, wanted_names(self.source).match
        folder = f"{self.source.uri}/"
        deadline = self.now() + _MAX_WAIT_SECONDS if self.wait else 0
        with raise_as(self.unavailable):
            for one in files.list(folder, after=after, facts_for=wanted, is_known=is_known):
                examined = one.facts and self._examine(one, one.facts, files, deadline)
                yield one.name, examined

    def present(self, names: Iterable[str]) -> Iterator[tuple[str, Examined]]:
        """Check individual files; yield each with its facts, or the error that excludes it.

        A file that no longer exists, or is left out by a rule, has None.

        Raises:
            LandingUnavailableError: the store cannot be reached.
        """
        wanted = list(names)
        with (
            raise_as(self.unavailable),
            ThreadPoolExecutor(_PARALLEL_HEADS, thread_name_prefix="looking") as threads,
        ):
            yield from zip(wanted, threads.map(self._present, wanted), strict=True)

    def found(self, name: str, facts: FileFacts) -> LandedFile:
        """Return the file in the form in which it is registered."""
        return facts.landed_as(self.uri_of(name))

    def name_of(self, uri: str) -> str | None:
        """Return the name of a file below the landing; None if it lies elsewhere."""
        prefix = f"{self.source.uri}/"
        return uri.removeprefix(prefix) if uri.startswith(prefix) else None

    def uri_of(self, name: str) -> str:
        """Return the URI of a name below the landing."""
        return self.files.join(self.source.uri, name)

    def settled(
        self, name: str, facts: FileFacts | None = None, deadline: float = 0
    ) -> FileFacts | None:
        """Return the facts of a file once it has settled; None if it is gone or being written.

        After `deadline`, it does not wait.

        Raises:
            LandingUnavailableError: its facts cannot be read.
        """
        files, place = self.files, shown(self.uri_of(name))
        with raise_as(lambda reason: self.unavailable(f"{place}: {reason}")):
            facts = facts or self._facts(name)
            while facts is not None:
                seconds = self._seconds_to_settle(facts, files)
                if seconds <= 0:
                    return facts
                if self.now() > deadline:
                    return None
                self.sleep(min(seconds, _MAX_WAIT_SECONDS) + 0.01)
                facts = self._facts(name)
        return None

    def unavailable(self, reason: str, uri: str | None = None) -> LandingUnavailableError:
        """Return the error that says why the landing, or its queue at `uri`, cannot be reached."""
        return LandingUnavailableError(self.stream.name, uri or self.source.uri, reason)

    def why_not(self, file: str) -> str:
        """Describe why this landing does not list a file, or does not list it yet."""
        name = self.files.resolve(self.source.uri, file)
        if name is None:
            return "the file is outside the landing"
        if misfit := _misfit(self.uri_of(name)):
            return f"its key {misfit}; copy the object to another key"
        if absence := self._absence(name):
            return absence
        if re.match(f"{_HIDDEN_FOLDER}|{_expression(UNFINISHED)}", name):
            return f"names like {', '.join(UNFINISHED)} are unfinished files"
        if not wanted_names(self.source).match(name):
            return "excluded by `source.include` and `source.exclude`"
        return "not registered yet: `batch-pipeline run` registers it"

    def _absence(self, name: str) -> str | None:
        """Describe why no file of this name can be registered."""
        try:
            facts = self._facts(name)
        except OSError as error:
            return f"it cannot be read ({reason_of(error)})"
        if facts is None or not facts.is_regular:
            return "no such file in the landing"
        if self.files.leads_outside(self.uri_of(name), self.source.within):
            return "a link that leads out of this folder, and not into one of `source.roots`"
        is_marker = _is_folder_marker(name, facts)
        return "folder markers are ignored" if is_marker else None

    def _examine(
        self, one: ListedFile, facts: FileFacts, files: FileSystem, deadline: float
    ) -> Examined:
        if refused := self._refusal(one):
            return refused
        if self._seconds_to_settle(facts, files) > 0:
            return self.settled(one.name, facts, deadline)
        return None if _is_folder_marker(one.name, facts) else facts

    def _seconds_to_settle(self, facts: FileFacts, files: FileSystem) -> float:
        """Return after how many seconds a file counts as complete, zero or less if it does now."""
        age = self.now() - facts.modified_at.timestamp()
        is_recent = files.settle_seconds > 0 and age > -_MAX_SKEW_SECONDS
        return files.settle_seconds - age if is_recent else 0

    def _refusal(self, one: ListedFile) -> PipelineError | None:
        """Return why a wanted file cannot be registered; None if it can."""
        if not (one.is_link or "#" in one.name or "\0" in one.name):
            return None  # no other name can be refused
        uri = self.uri_of(one.name)
        if one.is_link and self.files.leads_outside(uri, self.source.within):
            place, why = shown(uri), "it is a link that leads out of the landing"
            step = "Put the file itself there, add its folder to `source.roots`,"
        elif misfit := _misfit(uri):
            place, why = uri, f"its key {misfit}"
            step = "Copy the object to another key and delete this one,"
        else:
            return None
        return ConfigurationError(
            f"{self.stream.name}: {place!r} was not registered: {why}. Other files were "
            f"registered. {step} or exclude it with `source.exclude`."
        )

    def _present(self, name: str) -> Examined:
        if not wanted_names(self.source).match(name):
            return None
        if refused := self._refusal(ListedFile(name)):
            return refused
        try:
            facts = self._facts(name)
        except UnreachableError:
            raise
        except OSError as error:  # concerns only this object
            return self.unavailable(reason_of(error), self.uri_of(name))
        return None if facts is None or _is_folder_marker(name, facts) else facts

    def _facts(self, name: str) -> FileFacts | None:
        """Return the facts of a file; None if it is gone, or if no file can have the name."""
        try:
            return self.files.head(self.uri_of(name))
        except (FileNotFoundError, NotADirectoryError, InvalidValueError):
            return None  # its folder may be a file by now


def compare(file: LandedFile) -> str:
    """Describe the current state of a file, compared with what was registered."""
    try:
        now = filesystem_of(file.location).head(file.location)
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


# A listing matches every name: one expression takes a tenth of the time of `fnmatch`.
@lru_cache(maxsize=256)
def wanted_names(source: Source) -> re.Pattern[str]:
    """Return the expression for the names below the landing that are final and included."""
    unwanted = f"{_HIDDEN_FOLDER}|{_expression((*UNFINISHED, *source.exclude))}"
    return re.compile(rf"(?s:(?=.))(?!{unwanted})(?:{_expression(source.include)})")


def _expression(patterns: tuple[str, ...]) -> str:
    """Translate patterns; with a slash they match the whole name, otherwise its last part."""
    last_part = r"(?s:.*/)?(?=[^/]*\Z)"
    whole = [translate(one) if "/" in one else last_part + translate(one) for one in patterns]
    return "|".join(whole) or r"(?!)"


def _is_folder_marker(name: str, facts: FileFacts) -> bool:
    return (not name or name.endswith("/")) and facts.size_bytes == 0


def _misfit(uri: str) -> str | None:
    """Describe why no item can have this location; None if an item can."""
    try:
        is_range = split_location(uri)[1] is not None
    except InvalidValueError:
        is_range = True  # a range that no file can have
    if is_range:
        return "ends like a byte range"
    return "contains a NUL, which databases do not accept" if "\0" in uri else None
