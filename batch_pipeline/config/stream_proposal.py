"""Proposal of a stream for existing files: file selection, read options and a dry plan.

The stream is built from the keys of its stream file, like any other; nothing is written. For most
files, only size and position in the listing are kept.
"""

import glob
import os
import re
import shlex
import stat
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import filter as filter_names
from heapq import merge
from itertools import chain, zip_longest
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from batch_pipeline.config.attribute_types import absolute_uri
from batch_pipeline.config.stream_file import COMPONENT, stream_of, stream_text
from batch_pipeline.config.units import format_bytes
from batch_pipeline.encode.readers.csv_parsers import detect_dialect
from batch_pipeline.encode.readers.formats import (
    SOURCE_READERS,
    SourceReader,
    reader_for_extension,
)
from batch_pipeline.encode.sample import FileStart, Sample, read_sample, read_start
from batch_pipeline.model.errors import (
    BadFileError,
    ConfigurationError,
    InvalidValueError,
    LandingUnavailableError,
)
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import shown, to_uri
from batch_pipeline.model.planning import Machine, cut, limits_for
from batch_pipeline.model.stream import (
    STREAM_NAME,
    CsvOptions,
    SourceFormat,
    Stream,
    stream_name_of,
)
from batch_pipeline.spark.task_planning import estimate_cost
from batch_pipeline.storage.filesystem import reason_of
from batch_pipeline.storage.landing import SourceLanding

_COMPRESSIONS = ("", ".gz", ".gzip", ".bz2", ".xz", ".zst", ".zstd")
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,15}$")
_RANDOM = re.compile(r"[0-9a-fA-F]{8,}(?![A-Za-z])")  # a hash, or the start of a UUID
_BREAKS = "-_. "
_NUMBER = re.compile(r"(?:^|(?<=[-_. ]))[0-9]")


class FileKind(NamedTuple):
    """Files with the same extension and first word in their names.

    `ending` is the extension in lower case, without a compression suffix.
    """

    ending: str
    word: str


def kind_of(name: str) -> tuple[FileKind, str]:
    """Return the kind of a file and its full extension as written: `orders-`, `.csv.GZ`."""
    stem, packed = name, ""
    match = _ENDING.search(stem)
    if match and match[0].lower() in _COMPRESSIONS:
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
    """Files of one kind; `endings` are as written, including compression suffixes.

    `numbers` are the positions in the listing. `samples` are the 1st, 2nd, 4th, 8th, … file that is
    not empty, and `last` is the last such file.
    """

    kind: FileKind
    endings: set[str] = field(default_factory=set)
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    samples: list[LandedFile] = field(default_factory=list)
    last: LandedFile | None = None
    prefix: str | None = None
    filled: int = 0

    def add(self, file: LandedFile, name: str, ending: str, number: int) -> None:
        """Add a file; `number` is its position in the listing."""
        stem = name.removesuffix(ending)
        both = stem if self.prefix is None else self.prefix, stem
        self.prefix = commonprefix(both)  # noqa: RUF071 - letters, not folders, are meant
        self.endings.add(ending)
        self.sizes.append(file.size_bytes or 0)
        self.numbers.append(number)
        if file.size_bytes:
            self.last = file
            self.filled += 1
            if self.filled & (self.filled - 1) == 0:  # 1, 2, 4, 8, …
                self.samples.append(file)

    @property
    def word(self) -> str:
        """The common beginning of all names, at least the word of their kind.

        A single file does not show which part of its name changes.
        """
        word = self.kind.word
        if not word or len(self.sizes) < 2 or self.prefix is None:
            return word
        return max(word, common_word(self.prefix), key=len)

    @property
    def patterns(self) -> list[str]:
        """Name patterns of these files and of those that will land beside them."""
        return [name_pattern(self.word, ending) for ending in sorted(self.endings)]


def _group(files: Iterable[LandedFile]) -> list[Group]:
    """Group files by extension and first word; the groups with most files, then bytes, first."""
    groups: dict[FileKind, Group] = {}
    for number, file in enumerate(files):
        name = shown(file.uri).rpartition("/")[2]
        kind, ending = kind_of(name)
        groups.setdefault(kind, Group(kind=kind)).add(file, name, ending, number)
    return sorted(groups.values(), key=lambda one: (-len(one.sizes), -sum(one.sizes), one.patterns))


_MOST_WORDS = 20  # maximum number of first words for which files are compared
_MOST_ENDINGS = 20  # maximum number of other extensions whose files are read
_STARTS = 3
_FIRST_RECORDS = 100
_OF_A_KIND = "which cannot be read"  # ending of reasons that state the actual kind of a file
_OTHER_COLUMNS = "other columns"
_OTHER_KIND = "another kind of file"
_UNKNOWN_TEXT = "neither csv nor JSON; convert it to csv"

ReadAs = dict[str, Any]  # the keys below `source` that specify how files are read
_AUTO: ReadAs = {"format": SourceFormat.AUTO.value}


class LeftOut(NamedTuple):
    """Files that do not belong to the stream, with the reason."""

    patterns: tuple[str, ...]
    files: int
    reason: str

    @property
    def is_readable(self) -> bool:
        """Whether the files could be a stream of their own."""
        return self.reason in {_OTHER_COLUMNS, _OTHER_KIND}

    @property
    def shown(self) -> str:
        """The patterns as text."""
        return ", ".join(self.patterns)


class _Site(NamedTuple):
    """The folder of the project, and the URI of the files."""

    folder: Path
    uri: str

    @property
    def batches(self) -> str:
        """The folder of part files in the project; hidden if it is inside the landing."""
        inside = f"{to_uri(self.folder / 'batches')}/".startswith(f"{self.uri.rstrip('/')}/")
        return ".batches" if inside else "batches"

    def attributes(self, name: str, source: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys below `attributes` of the stream file."""
        return {
            "stream": name,
            "source": {"uri": self._location(name), **source},
            "storage": {"root": f"../../{self.batches}/{name}"},
        }

    def stream(self, attributes: Mapping[str, Any]) -> Stream:
        """Return the stream that a stream file with these keys defines."""
        return stream_of(attributes, self.folder / "streams" / attributes["stream"])

    def unnamed(self, source: Mapping[str, Any]) -> Stream:
        """Return a stream with these keys below `source`, whose name is not known yet."""
        return self.stream(self.attributes("init", source))

    def _location(self, name: str) -> str:
        """Return the location for the stream file: relative if it is in the project."""
        path = Path(shown(self.uri))
        is_plain = "{{" not in str(path) and "://" not in str(path) and str(path).isprintable()
        if not self.uri.startswith("file:") or not is_plain:
            return self.uri
        if path.is_relative_to(self.folder):
            return Path(os.path.relpath(path, self.folder / "streams" / name)).as_posix()
        return str(path)


class _Choice(NamedTuple):
    """The groups of the stream, its keys below `source`, and the files that it leaves out."""

    groups: list[Group]
    source: dict[str, Any]
    left_out: list[LeftOut]


def _choose(groups: Sequence[Group], site: _Site) -> _Choice:
    """Choose the most common readable extension, and the groups of it that are alike.

    Raises:
        ConfigurationError: no file is readable, or the first that should be readable is not.
        SourceUnavailableError: a store cannot be reached.
    """
    endings: dict[str, list[Group]] = {}
    for group in groups:
        endings.setdefault(group.kind.ending, []).append(group)
    families = sorted(endings.values(), key=_rank)
    left_out: list[LeftOut] = []
    while families:
        family = families.pop(0)
        try:
            reading = _reading(family, site)
        except BadFileError as error:
            raise _unreadable(error) from error
        if not isinstance(reading, str):
            return _chosen(family, families, reading, left_out, site)
        left_out.append(_left_out(family, reading))
    why = "; ".join(f"{one.files} {one.shown}: {one.reason}" for one in left_out[:3])
    if not any(one.samples for one in groups):
        why = "all files are empty"
    step = "Name a folder with csv, JSON, parquet or avro files."
    raise project_not_made(shown(site.uri), f"no file there can be read ({why})", step)


def _rank(family: Sequence[Group]) -> tuple[bool, bool, int, int]:
    is_unknown = reader_for_extension(family[0].kind.ending) is None
    is_empty = not any(one.samples for one in family)
    files, size = sum(len(one.sizes) for one in family), sum(sum(one.sizes) for one in family)
    return is_empty, is_unknown, -files, -size


def _reading(family: Sequence[Group], site: _Site, most: int = _STARTS) -> ReadAs | str:
    """Return how to read files of an extension, from the first `most`, or why that is impossible.

    Raises:
        BadFileError: the first file is damaged.
    """
    group = next((one for one in family if one.samples), None)
    if group is None:
        return "empty"
    promised = reader_for_extension(group.kind.ending)
    readings: list[ReadAs | None] = []
    for file in group.samples[:most]:
        try:
            start = read_start(file, site.unnamed(_AUTO))
        except BadFileError as error:
            if readings:
                continue
            if promised is None or error.reason.endswith(_OF_A_KIND):
                return error.reason
            raise
        readings.append(_reading_of(start, promised))
        if readings[0] is None:
            return _UNKNOWN_TEXT
    formats = {one["format"] for one in readings if one is not None}
    return {**(readings[0] or {}), **(_AUTO if len(formats) > 1 else {})}


def _reading_of(start: FileStart, promised: SourceReader | None) -> ReadAs | None:
    """Return how to read a file, from its first bytes and the reader of its extension."""
    detected, dialect = start.format, None
    if SOURCE_READERS[detected].has_text_cells:
        if promised is not None and promised.format in {SourceFormat.JSON, SourceFormat.JSONL}:
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


def _chosen(
    family: Sequence[Group],
    others: Sequence[Sequence[Group]],
    read_as: ReadAs,
    left_out: list[LeftOut],
    site: _Site,
) -> _Choice:
    """Choose the similar groups of an extension, and select them by patterns."""
    chosen = []
    for group, reason in zip(family, _differences(family, site.unnamed(read_as)), strict=True):
        if reason is None:
            chosen.append(group)
        else:
            left_out.append(_left_out([group], reason))
    for number, other in enumerate(others):
        is_read = number < _MOST_ENDINGS or not any(one.samples for one in other)
        try:
            reading = _reading(other, site, 1) if is_read else _AUTO
        except BadFileError as error:
            reading = error.reason
        left_out.append(_left_out(other, reading if isinstance(reading, str) else _OTHER_KIND))
    unlike = [one for one in family if one not in chosen]
    include = _patterns(chosen) if unlike else _endings(chosen)
    exclude = _overlapping(include, chosen, [*unlike, *chain.from_iterable(others)])
    source = {"include": list(include), **({"exclude": list(exclude)} if exclude else {})}
    return _Choice(chosen, source | read_as, left_out)


def _differences(family: Sequence[Group], stream: Stream) -> Iterator[str | None]:
    """Yield for each group why its files differ from those of the first and largest, or None."""
    expected: set[str] | None = None
    for group in family:
        if not 1 < len(family) <= _MOST_WORDS:
            yield None
            continue
        try:
            sample = read_sample(group.samples[:1], stream, most_records=_FIRST_RECORDS)
        except BadFileError as error:
            if not expected:
                raise _unreadable(error) from error
            yield error.reason
            continue
        columns = {column.name for column in sample.columns}
        expected = expected or columns  # empty files have none
        is_other = len(columns & expected) * 2 < min(len(columns), len(expected))
        yield _OTHER_COLUMNS if is_other else None


def _left_out(groups: Sequence[Group], reason: str) -> LeftOut:
    return LeftOut(_endings(groups), sum(len(one.sizes) for one in groups), reason)


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
    endings = tuple(ending for one in chosen for ending in one.endings)
    patterns = (
        pattern
        for group in others
        if group.kind.word.startswith(tuple(words))
        for pattern, ending in zip(group.patterns, sorted(group.endings), strict=True)
        if ending.endswith(endings)
    )
    return tuple(dict.fromkeys(patterns))


def project_not_made(place: str, problem: str, next_step: str) -> ConfigurationError:
    """Return the error for files for which no project can be created."""
    return ConfigurationError(f"{place}: {problem}. Nothing was written. {next_step}")


def _unreadable(error: BadFileError) -> ConfigurationError:
    line = "" if error.line is None else f", line {error.line}"
    step = "Repair or move this file, or select others with --include."
    return project_not_made(f"{shown(error.location)}{line}", error.reason, step)


def _location_of(place: str) -> str:
    """Return the URI of a path or URI.

    Raises:
        ConfigurationError: it is not an existing folder or a bucket.
    """
    try:
        uri = absolute_uri(place, Path.cwd())
    except (InvalidValueError, RuntimeError) as error:
        step = "Name a folder, or a URI such as s3://bucket/prefix."
        raise project_not_made(place, "is not a folder or bucket", step) from error
    if not uri.startswith("file:"):
        return uri
    path = Path(shown(uri))
    step = "Correct --from, or create the folder and copy files there first."
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError as error:
        raise project_not_made(str(path), "there is no such folder", step) from error
    except OSError as error:
        raise project_not_made(str(path), f"cannot be read ({reason_of(error)})", step) from error
    if not is_folder:
        words = ("--from", str(path.parent), "--include", glob.escape(path.name))
        step = f"Name its folder: {shlex.join(words)}"
        raise project_not_made(str(path), "is a file, not a folder", step)
    return uri


def _name_for(given: str | None, groups: Sequence[Group], place: str) -> str:
    """Return the stream's name: the given one, that of the files, or that of the folder.

    Raises:
        ConfigurationError: none of them is a valid stream name.
    """
    step = "Name the stream with --name: letters, digits, `_`, `.` and `-`, at most 100."
    if given is not None:
        if not STREAM_NAME.fullmatch(given):
            raise project_not_made(f"--name {given}", "is not a valid stream name", step)
        return given
    words = [groups[0].word] if len(groups) == 1 else []
    for text in (*words, place.rstrip("/").rpartition("/")[2]):
        name = stream_name_of(text)
        if name is not None and any(one.isalpha() for one in name):
            return name
    raise project_not_made(
        place, "no stream name can be derived from the files or the folder", step
    )


_MOST_FILES = 5
_MOST_RECORDS = 10_000
_LEAST_RATIO = 0.01
_SMALL_FILE = 2**20  # opening such a file costs more than reading it


class DryPlan(NamedTuple):
    """Result of a plan of the current files; `oversized` batches are one file above the limit."""

    files: int
    weight_bytes: int
    batches: int
    oversized: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A stream for some files; `attributes` are the keys of its stream file.

    `files_found` and `bytes_found` count all files that were listed; `batches_folder` is the
    stream's output folder in the project.
    """

    stream: Stream
    attributes: Mapping[str, Any]
    left_out: list[LeftOut]
    sample: Sample
    plan: DryPlan
    largest_bytes: int
    machine: Machine
    files_found: int
    bytes_found: int
    notes: list[str]
    batches_folder: str


def this_machine() -> Machine:
    """Return the number of cores that this process may use, and the memory of the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(cores=cores or 1, memory_bytes=psutil.virtual_memory().total)


def propose(
    folder: Path,
    place: str,
    machine: Machine,
    *,
    name: str | None = None,
    include: Sequence[str] = (),
) -> Proposal:
    """Inspect the files at a path or URI, and propose a stream for them in a project's folder.

    `include` are name patterns of the files to inspect; empty for all of them.

    Raises:
        ConfigurationError: there are no files, none can be read, or no name can be derived.
        SourceUnavailableError: a store cannot be reached.
    """
    site = _Site(folder, _location_of(place))
    groups, errors = _listed(site, include)
    choice = _choose(groups, site)
    exclude = [pattern for one in choice.left_out for pattern in one.patterns]
    if include and not any(filter_names(_patterns(choice.groups), one) for one in exclude):
        choice.source.update(include=list(include), **({"exclude": exclude} if exclude else {}))
    attributes = site.attributes(_name_for(name, choice.groups, shown(site.uri)), choice.source)
    files = _spread(choice.groups)
    try:
        sample = read_sample(files, site.stream(attributes), most_records=_MOST_RECORDS)
    except BadFileError as error:
        raise _unreadable(error) from error
    each = (zip(one.numbers, one.sizes, strict=True) for one in choice.groups)
    sizes = [size for _, size in merge(*each)]  # in the order of the listing
    limits = limits_for(sizes, machine, growth=_growth(files))
    attributes["batch"] = {"max_weight": limits.max_weight, "max_count": limits.max_count}
    if sample.bad:  # twice the observed share
        ratio = round(2 * sample.bad / (sample.bad + sample.records), 3)
        attributes["on_bad_record"] = {"max_bad_ratio": min(1.0, max(_LEAST_RATIO, ratio))}
    cuts = list(cut(enumerate(sizes, 1), after_id=0, high_watermark=len(sizes), limits=limits))
    return Proposal(
        stream=site.stream(attributes),
        attributes=attributes,
        left_out=choice.left_out,
        sample=sample,
        plan=DryPlan(
            files=len(sizes),
            weight_bytes=sum(sizes),
            batches=len(cuts),
            oversized=sum(one.weight > limits.max_weight for one in cuts),
        ),
        largest_bytes=max(sizes),
        machine=machine,
        files_found=sum(len(one.sizes) for one in groups),
        bytes_found=sum(sum(one.sizes) for one in groups),
        notes=[*errors, *_notes(sample)],
        batches_folder=site.batches,
    )


def _listed(site: _Site, include: Sequence[str]) -> tuple[list[Group], list[str]]:
    stream = site.unnamed({"include": list(include) or ["*"]})
    landing = SourceLanding(stream=stream, wait=True)
    try:
        groups = _group(landing.found_files())
    except LandingUnavailableError as error:
        step = "Correct the access, or give another place with --from."
        raise project_not_made(
            shown(site.uri), f"cannot be listed ({error.reason})", step
        ) from error
    if not groups:
        what = f"no file named {', '.join(include)}" if include else "no file"
        step = "Copy files there first, or name another place with --from."
        raise project_not_made(shown(site.uri), f"there is {what}", step)
    return groups, [str(one) for one in landing.troubles]


def _spread(groups: Sequence[Group]) -> list[LandedFile]:
    """Return up to five files of all groups in turn: the first, the last, and some between."""
    of_group = ([*one.samples[:1], one.last, *reversed(one.samples[1:])] for one in groups)
    in_turn = chain.from_iterable(zip_longest(*of_group))
    return list(dict.fromkeys(file for file in in_turn if file is not None))[:_MOST_FILES]


def _growth(files: Sequence[LandedFile]) -> float:
    """Return the ratio of bytes to encode to bytes of the files."""
    items = [Item(id=1, file=file) for file in files if (file.size_bytes or 0) > _SMALL_FILE]
    weight = sum(item.weight for item in items)
    return sum(map(estimate_cost, items)) / weight if weight else 1.0


def _malformed(sample: Sample) -> str:
    """Return how many of the records of the sample are malformed."""
    return f"malformed records: {sample.bad} of {sample.bad + sample.records} inspected"


def _notes(sample: Sample) -> list[str]:
    notes = []
    if sample.first_bad is not None:
        location, line, reason = sample.first_bad
        notes.append(
            f"{_malformed(sample)}, the first one in {shown(location)}, line {line}: {reason}. "
            f"They will be quarantined; `on_bad_record` in the stream file limits their number."
        )
    for error in sample.unread:
        line_of = "" if error.line is None else f", line {error.line}"
        notes.append(
            f"{shown(error.location)}{line_of}: {error.reason}. Its batch will fail; repair or "
            f"move the file, or set `on_bad_file: quarantine` in the stream file."
        )
    return notes


_MOST_COLUMNS = 50


def text_of(proposal: Proposal) -> str:
    """Return the text of the stream file, with columns and counts as comments."""
    machine, sample = proposal.machine, proposal.sample
    notes = {
        "batch.max_weight": (
            f"for {machine.cores} cores and {format_bytes(machine.memory_bytes)} of memory; the "
            f"largest file has {format_bytes(proposal.largest_bytes)}"
        ),
        "batch.max_count": "files in a batch",
    }
    keys = [one.name for one in sample.columns if one.name.lower().endswith("id")]
    if keys:
        notes["key_properties"] = f"columns that together identify a record, such as {keys[0]}"
    if sample.bad:
        notes["on_bad_record"] = f"{_malformed(sample)}; more than this share fails a batch"
    heading = [f"Columns (records sampled: {sample.records}):"]
    heading += [f"  {one.name}: {one.type_text}" for one in sample.columns[:_MOST_COLUMNS]]
    if len(sample.columns) > _MOST_COLUMNS:
        heading.append(f"  and {len(sample.columns) - _MOST_COLUMNS} more")
    return stream_text(COMPONENT, proposal.attributes, comments=notes, heading=heading)


def proposal_json(proposal: Proposal) -> dict[str, Any]:
    """Describe a proposal as JSON."""
    sample, place = proposal.sample, proposal.stream.source.place
    first = sample.first_bad
    return {
        "stream": proposal.stream.name,
        "source": place,
        "files_found": proposal.files_found,
        "bytes_found": proposal.bytes_found,
        "include": proposal.attributes["source"]["include"],
        "exclude": proposal.attributes["source"].get("exclude", []),
        "format": proposal.stream.source.format.value,
        "options": proposal.attributes["source"].get("options", {}),
        "left_out": [one._asdict() for one in proposal.left_out],
        "columns": {one.name: one.type_text for one in sample.columns},
        "records_sampled": sample.records,
        "records_malformed": sample.bad,
        "first_malformed": first
        and {"location": first[0], "file": shown(first[0]), "line": first[1], "reason": first[2]},
        "max_weight": proposal.stream.limits.max_weight,
        "max_count": proposal.stream.limits.max_count,
        "plan": proposal.plan._asdict(),
        "notes": proposal.notes,
    }
