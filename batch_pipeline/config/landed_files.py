"""The files of a place by what their names tell; of most only size and order are kept."""

import glob
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain
from os.path import commonprefix
from typing import Any, NamedTuple

from batch_pipeline.encode.readers.csv_parsers import detect_dialect
from batch_pipeline.encode.readers.formats import (
    SOURCE_READERS,
    RecordKind,
    SourceReader,
    reader_for_extension,
)
from batch_pipeline.encode.sample import FileStart, read_sample, read_start
from batch_pipeline.model.errors import BadFileError, ConfigurationError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import shown
from batch_pipeline.model.stream import CsvOptions, SourceFormat, Stream

_PACKED = ("", ".gz", ".gzip", ".bz2", ".xz", ".zst", ".zstd")
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,15}$")
_RANDOM = re.compile(r"[0-9a-fA-F]{8,}(?![A-Za-z])")  # a hash, or the start of a UUID
_BREAKS = "-_. "
_NUMBER = re.compile(r"(?:^|(?<=[-_. ]))[0-9]")


class FileKind(NamedTuple):
    """Files with the same extension and first word in their names.

    `ending` is the extension in lower case, without that of a compression.
    """

    ending: str
    word: str


def kind_of(name: str) -> tuple[FileKind, str]:
    """Return the kind of a file and its full extension as written: `orders-`, `.csv.GZ`."""
    stem, packed = name, ""
    match = _ENDING.search(stem)
    if match and match[0].lower() in _PACKED:
        stem, packed = stem[: match.start()], match[0]
        match = _ENDING.search(stem)
    ending = match[0] if match and match.start() else ""
    kind = FileKind(ending=ending.lower(), word=_word(stem.removesuffix(ending)))
    return kind, ending + packed


def name_pattern(word: str, ending: str) -> str:
    """Return the pattern of file names with this beginning and ending."""
    return f"{glob.escape(word)}*{glob.escape(ending)}"


def common_word(prefix: str) -> str:
    """Return the word at the start of a common prefix of file names, up to the first number.

    A number inside a word, as in `covid19-regions-`, is part of it.
    """
    number = _NUMBER.search(prefix)
    start = prefix if number is None else prefix[: number.start()]
    return _up_to_break(start.rstrip("0123456789"), start)


def _word(stem: str) -> str:
    """Return the part before dates, numbers and random names."""
    if _RANDOM.match(stem) or not stem.isprintable():
        return ""
    word = re.split(r"[0-9]", stem, maxsplit=1)[0]
    return word if word == stem else _up_to_break(word, stem)


def _up_to_break(word: str, stem: str) -> str:
    """Remove one or two letters after the last separator, as in `sales_Q1`."""
    if word == stem and word[-1:] in _BREAKS:
        return word
    end = max(word.rfind(separator) for separator in _BREAKS) + 1
    return word[:end] if end and len(word) - end <= 2 else word


@dataclass(slots=True, kw_only=True)
class Group:
    """Files of one kind, in the order of the listing; `endings` are as written, with compression.

    `samples` are the first files that are not empty, and then ever fewer of the later ones; `last`
    is the last one of all.
    """

    kind: FileKind
    endings: set[str] = field(default_factory=set)
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    order: "array[int]" = field(default_factory=lambda: array("q"))
    samples: list[LandedFile] = field(default_factory=list)
    last: LandedFile | None = None
    prefix: str | None = None
    filled: int = 0

    def add(self, file: LandedFile, name: str, ending: str, number: int) -> None:
        """Take in a file that came as the so many-th of the listing."""
        stem = name.removesuffix(ending)
        both = stem if self.prefix is None else self.prefix, stem
        self.prefix = commonprefix(both)  # noqa: RUF071 - letters, not folders, are meant
        size = file.size_bytes or 0
        self.endings.add(ending)
        self.sizes.append(size)
        self.order.append(number)
        if size:
            self.last = file
            self.filled += 1
            if self.filled & (self.filled - 1) == 0:  # 1, 2, 4, 8, …
                self.samples.append(file)

    @property
    def word(self) -> str:
        """What their names begin with: more than the word of their kind, where all of several do.

        A single file does not tell which part of its name changes.
        """
        word = self.kind.word
        if not word or len(self.sizes) < 2 or self.prefix is None:
            return word
        return max(word, common_word(self.prefix), key=len)

    @property
    def patterns(self) -> list[str]:
        """Name patterns of these files and of those that will land beside them."""
        return [name_pattern(self.word, ending) for ending in sorted(self.endings)]


def grouped(files: Iterable[LandedFile]) -> list[Group]:
    """Group files by ending and leading word, the groups with most files, then bytes, first."""
    groups: dict[FileKind, Group] = {}
    for number, file in enumerate(files):
        name = shown(file.uri).rpartition("/")[2]
        kind, ending = kind_of(name)
        if kind not in groups:
            groups[kind] = Group(kind=kind)
        groups[kind].add(file, name, ending, number)

    def rank(group: Group) -> tuple[bool, int, int, list[str]]:
        is_unknown = reader_for_extension(group.kind.ending) is None
        return is_unknown, -len(group.sizes), -sum(group.sizes), group.patterns

    return sorted(groups.values(), key=rank)


def weights(groups: Iterable[Group]) -> Iterator[int]:
    """Return the sizes of the files of some groups in the order of the listing."""
    each = (zip(one.order, one.sizes, strict=True) for one in groups)
    return (size for _, size in merge(*each))


_MOST_WORDS = 20  # beyond, files are not compared by what their names begin with
_LOOKED_INTO = 20
_STARTS = 3
_FIRST_RECORDS = 100
_OF_A_KIND = "which cannot be read"  # how reasons end that tell what a file is instead
_OTHER_COLUMNS = "other columns"
_OTHER_KIND = "another kind of file"
_EMPTY = "empty"
_UNKNOWN_TEXT = "neither csv nor JSON; convert it to csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Files that are not the stream's, and why; readable ones could be a stream of their own."""

    patterns: tuple[str, ...]
    files: int
    reason: str

    @property
    def is_readable(self) -> bool:
        """Whether the files could be a stream."""
        return self.reason in {_OTHER_COLUMNS, _OTHER_KIND}

    @property
    def shown(self) -> str:
        """The patterns for people."""
        return ", ".join(self.patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The groups that are the stream's, the first one with the most files, and the others.

    `source` are the keys below `source` of the stream file that select and read the files.
    """

    groups: tuple[Group, ...]
    source: dict[str, Any]
    left_out: tuple[LeftOut, ...]


ReadAs = dict[str, Any]  # the keys below `source` that say how files are read
_AUTO: ReadAs = {"format": SourceFormat.AUTO.value}
StreamOf = Callable[[ReadAs], Stream]


def choose(groups: Sequence[Group], stream_of: StreamOf, place: str) -> Choice:
    """Choose the files of the commonest ending that can be read, and of those the alike ones.

    `stream_of` gives a stream that reads files that way.

    Raises:
        ConfigurationError: none can be read, or the first one that should be readable cannot.
        SourceUnavailableError: a store cannot be reached.
    """
    endings: dict[str, list[Group]] = {}
    for group in groups:
        endings.setdefault(group.kind.ending, []).append(group)
    ranked = sorted(endings.values(), key=_choice_rank)
    left_out: list[LeftOut] = []
    for number, family in enumerate(ranked):
        read_as = _read_as(family, stream_of, left_out)
        if read_as is None:
            continue
        chosen = _alike(family, stream_of(read_as), left_out)
        others = ranked[number + 1 :]
        for place_in_order, other in enumerate(others):
            left_out.append(_without(other, _reason(other, stream_of, place_in_order)))
        unlike = [one for one in family if one not in chosen]
        include = _patterns(chosen) if unlike else _endings(chosen)
        exclude = _overlapping(include, chosen, [*unlike, *chain.from_iterable(others)])
        source = {"include": list(include), **({"exclude": list(exclude)} if exclude else {})}
        return Choice(groups=tuple(chosen), source=source | read_as, left_out=tuple(left_out))
    why = "; ".join(f"{one.files} {one.shown}: {one.reason}" for one in left_out[:3])
    if not any(one.samples for one in groups):
        why = "all files are empty"
    step = "Name a folder with csv, JSON, parquet or avro files."
    raise project_not_made(place, f"no file there can be read ({why})", step)


def _choice_rank(family: Sequence[Group]) -> tuple[bool, bool, int, int]:
    is_unknown = reader_for_extension(family[0].kind.ending) is None
    is_empty = not any(one.samples for one in family)
    files, size = sum(len(one.sizes) for one in family), sum(sum(one.sizes) for one in family)
    return is_empty, is_unknown, -files, -size


def _read_as(
    family: Sequence[Group], stream_of: StreamOf, left_out: list[LeftOut]
) -> ReadAs | None:
    """Determine by the first files how files with a suffix are read; None if they cannot be."""
    group = next((one for one in family if one.samples), family[0])
    promised, reason = reader_for_extension(group.kind.ending), _EMPTY
    try:
        starts = list(_starts(group, stream_of(_AUTO)))
    except BadFileError as error:
        if promised is not None and not error.reason.endswith(_OF_A_KIND):
            raise unreadable(error) from error
        starts, reason = [], error.reason
    readings = [_reading(promised, start) for start in starts]
    if readings and readings[0] is not None:
        is_mixed = any(
            one is not None and one["format"] != readings[0]["format"] for one in readings
        )
        return {**readings[0], **_AUTO} if is_mixed else readings[0]
    reason = _UNKNOWN_TEXT if starts else reason
    left_out.append(_without(family, reason))
    return None


def _starts(group: Group, stream: Stream) -> Iterator[FileStart]:
    """Look at the first files; of all but the very first only at those that can be read."""
    for number, file in enumerate(group.samples[:_STARTS]):
        try:
            yield read_start(file, stream)
        except BadFileError:
            if number == 0:
                raise


def _reading(promised: SourceReader | None, start: FileStart) -> ReadAs | None:
    """Return how a file is read, by its extension and its first bytes."""
    detected, dialect = start.format, None
    if SOURCE_READERS[detected].record_kind is RecordKind.TEXT_CELLS:
        if promised is not None and promised.record_kind is RecordKind.JSON:
            detected = promised.format  # its first line is malformed
        else:
            dialect = detect_dialect(start.text, is_whole=start.is_whole)
            if dialect is None and (promised is None or promised.format is not detected):
                return None  # else it is csv of one column
    options: dict[str, Any] = {}
    if dialect is not None and dialect.delimiter != CsvOptions().delimiter:
        options["delimiter"] = dialect.delimiter
    if dialect is not None and dialect.names:
        options["names"] = list(dialect.names)
    if start.charset != "utf-8":
        options["charset"] = start.charset
    return {"format": detected.value} | ({"options": options} if options else {})


def _alike(family: Sequence[Group], stream: Stream, left_out: list[LeftOut]) -> list[Group]:
    """Return the groups of an ending whose files have the columns of the largest one."""
    if not 1 < len(family) <= _MOST_WORDS:
        return list(family)
    main, *others = family
    try:
        columns = _columns(main, stream)
    except BadFileError as error:
        raise unreadable(error) from error
    chosen = [main]
    for group in others:
        try:
            own = _columns(group, stream)
            is_other = len(own & columns) * 2 < min(len(own), len(columns))
            reason = _OTHER_COLUMNS if is_other else None
        except BadFileError as error:
            reason = error.reason
        if reason is None:
            chosen.append(group)
        else:
            left_out.append(_without([group], reason))
    return chosen


def _without(groups: Sequence[Group], reason: str) -> LeftOut:
    files = sum(len(one.sizes) for one in groups)
    return LeftOut(patterns=_endings(groups), files=files, reason=reason)


def _columns(group: Group, stream: Stream) -> set[str]:
    sample = read_sample(group.samples[:1], stream, most_records=_FIRST_RECORDS)
    return {column.name for column in sample.columns}


def _reason(family: Sequence[Group], stream_of: StreamOf, number: int) -> str:
    """Return why files with another suffix than the stream's are left out."""
    group = next((one for one in family if one.samples), None)
    if group is None:
        return _EMPTY
    if number < _LOOKED_INTO:
        try:
            start = read_start(group.samples[0], stream_of(_AUTO))
        except BadFileError as error:
            return error.reason
        if _reading(reader_for_extension(group.kind.ending), start) is None:
            return _UNKNOWN_TEXT
    return _OTHER_KIND


def _patterns(groups: Sequence[Group]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for group in groups for one in group.patterns))


def _endings(groups: Sequence[Group]) -> tuple[str, ...]:
    endings = sorted({ending for group in groups for ending in group.endings})
    return _patterns(groups) if len(groups) == 1 else tuple(f"*{ending}" for ending in endings)


def _overlapping(
    include: Sequence[str], chosen: Sequence[Group], others: Sequence[Group]
) -> tuple[str, ...]:
    """Return the patterns of other groups whose files the stream's patterns would also match."""
    words = [one.kind.word for one in chosen]
    if any(one.startswith("*") for one in include):
        words = [""]
    endings = {ending for one in chosen for ending in one.endings}
    found = (
        pattern
        for group in others
        if any(group.kind.word.startswith(word) for word in words)
        for pattern, other in zip(group.patterns, sorted(group.endings), strict=True)
        if any(other.endswith(ending) for ending in endings)
    )
    return tuple(dict.fromkeys(found))


def unreadable(error: BadFileError) -> ConfigurationError:
    place = shown(error.location)
    place = place if error.line is None else f"{place}, line {error.line}"
    step = "Repair or move this file, or select others with --include."
    return project_not_made(place, error.reason, step)


def project_not_made(place: str, problem: str, next_step: str) -> ConfigurationError:
    """Build the error of a place that no project can be made of."""
    return ConfigurationError(f"{place}: {problem}. Nothing was written. {next_step}")
