"""A stream for the files of a place: what its stream file says, and what it would do.

The stream is the product's own, made of these very keys; nothing is written.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from batch_pipeline.config.attribute_types import absolute_uri
from batch_pipeline.config.landed_files import (
    Choice,
    Group,
    LeftOut,
    choose,
    grouped,
    project_not_made,
    unreadable,
    weights,
)
from batch_pipeline.config.stream_file import COMPONENT, stream_of, stream_text
from batch_pipeline.config.units import format_bytes
from batch_pipeline.encode.sample import Sample, read_sample
from batch_pipeline.model.errors import BadFileError, InvalidValueError, LandingUnavailableError
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import shown, to_uri
from batch_pipeline.model.planning import Machine, cut, limits_for
from batch_pipeline.model.stream import STREAM_NAME, Stream, stream_name_of
from batch_pipeline.spark.task_planning import estimate_cost
from batch_pipeline.storage.landing import SourceLanding


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the files are, by a URI, and the folder of the project."""

    folder: Path
    uri: str

    @property
    def place(self) -> str:
        """What people call the place of the files."""
        return shown(self.uri)

    @property
    def batches(self) -> str:
        """The folder of part files in the project: hidden where they would land themselves."""
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
        """Return the stream that a stream file with these keys defines.

        Raises:
            ConfigurationError: it makes none.
        """
        return stream_of(attributes, self.folder / "streams" / attributes["stream"])

    def unnamed(self, source: Mapping[str, Any]) -> Stream:
        """Return a stream with these keys below `source`, whose name is not known yet."""
        return self.stream(self.attributes("init", source))

    def _location(self, name: str) -> str:
        """Return the location for the stream file: relative if it is in the project."""
        if not self.uri.startswith("file:"):
            return self.uri
        path = Path(self.place)
        if "{{" in str(path) or "://" in str(path) or not str(path).isprintable():
            return self.uri
        if path.is_relative_to(self.folder):
            return Path(os.path.relpath(path, self.folder / "streams" / name)).as_posix()
        return str(path)


def _location_of(place: str) -> str:
    """Return the URI of a path or URI.

    Raises:
        ConfigurationError: there is no such place.
    """
    try:
        uri = absolute_uri(place, Path.cwd())
    except (InvalidValueError, RuntimeError) as error:
        step = "Give a folder, or a URI such as s3://bucket/prefix."
        raise project_not_made(place, "is not a place where files land", step) from error
    path = Path(shown(uri))
    if uri.startswith("file:") and path.is_file():
        step = f"Give its folder: --from {path.parent} --include {path.name}"
        raise project_not_made(str(path), "is a file, not a folder", step)
    if uri.startswith("file:") and not path.is_dir():
        step = "Correct --from, or make the folder and let files land there first."
        raise project_not_made(str(path), "there is no such folder", step)
    return uri


def _name_for(given: str | None, choice: Choice, place: str) -> str:
    """Return the stream's name: the given one, that of the files, or that of the folder.

    Raises:
        ConfigurationError: none of them can be the name of a stream.
    """
    step = "Name the stream with --name: letters, digits, `_`, `.` and `-`, at most 100."
    if given is not None:
        if not STREAM_NAME.fullmatch(given):
            raise project_not_made(f"--name {given}", "is not the name of a stream", step)
        return given
    words = [choice.groups[0].word] if len(choice.groups) == 1 else []
    for text in (*words, place.rstrip("/").rpartition("/")[2]):
        name = stream_name_of(text)
        if name is not None and any(one.isalpha() for one in name):
            return name
    raise project_not_made(place, "neither files nor folder give a stream's name", step)


_MOST_FILES = 5
_MOST_RECORDS = 10_000
_LEAST_RATIO = 0.01
_SMALL_FILE = 2**20  # opening it costs more than its bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DryPlan:
    """What planning would make of the files now; `heavier` batches are one too heavy file each."""

    files: int
    size_bytes: int
    batches: int
    heavier: int
    largest_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A stream for some files; `attributes` are the keys of its stream file.

    `files_found` and `bytes_found` are those of the whole place, `notes` what somebody should know,
    `own_folders` what the stream writes into the project.
    """

    stream: Stream
    attributes: Mapping[str, Any]
    left_out: tuple[LeftOut, ...]
    sample: Sample
    plan: DryPlan
    machine: Machine
    files_found: int
    bytes_found: int
    notes: tuple[str, ...]
    own_folders: tuple[str, ...]


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
    """Look at the files at a path or URI and propose a stream for them, in a project's folder.

    `include` are the name patterns of the files that are meant; all of them if it is empty.

    Raises:
        ConfigurationError: there are none, none can be read, or they give no name.
        SourceUnavailableError: a store cannot be reached.
    """
    site = Site(folder=folder, uri=_location_of(place))
    groups, troubles = _listed(site, include)
    choice = choose(groups, site.unnamed, site.place)
    if include and not choice.left_out:
        choice.source["include"] = list(include)
    attributes = site.attributes(_name_for(name, choice, site.place), choice.source)
    files = _spread(choice.groups)
    try:
        sample = read_sample(files, site.stream(attributes), most_records=_MOST_RECORDS)
    except BadFileError as error:
        raise unreadable(error) from error
    sizes = list(weights(choice.groups))
    limits = limits_for(sizes, machine, growth=_growth(files))
    attributes["batch"] = {"max_weight": limits.max_weight, "max_count": limits.max_count}
    if sample.bad:  # twice the share that was seen
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
            size_bytes=sum(sizes),
            batches=len(cuts),
            heavier=sum(one.weight > limits.max_weight for one in cuts),
            largest_bytes=max(sizes),
        ),
        machine=machine,
        files_found=sum(len(one.sizes) for one in groups),
        bytes_found=sum(sum(one.sizes) for one in groups),
        notes=(*troubles, *_notes(sample)),
        own_folders=(site.batches,),
    )


def _listed(site: Site, include: Sequence[str]) -> tuple[list[Group], list[str]]:
    stream = site.unnamed({"include": list(include) or ["*"]})
    landing = SourceLanding(stream=stream, wait=True)
    try:
        groups = grouped(landing.found_files())
    except LandingUnavailableError as error:
        step = "Correct the access, or give another place with --from."
        raise project_not_made(site.place, f"cannot be listed ({error.reason})", step) from error
    if not groups:
        what = f"no file named {', '.join(include)}" if include else "no file"
        step = "Let files land there first, or name another place with --from."
        raise project_not_made(site.place, f"{what} is there", step)
    return groups, [str(one) for one in landing.troubles]


def _spread(groups: Sequence[Group]) -> list[LandedFile]:
    """Return up to five files spread over the listing: first, last and some between."""
    firsts = [one.samples[0] for one in groups if one.samples]
    lasts = [one.last for one in groups if one.last is not None]
    later = [file for one in groups for file in reversed(one.samples[1:])]
    between = later[:: max(1, len(later) // _MOST_FILES)]
    ordered = [*firsts[:1], *lasts[:1], *firsts[1:], *between, *lasts[1:]]
    return list(dict.fromkeys(ordered))[:_MOST_FILES]


def _growth(files: Sequence[LandedFile]) -> float:
    """Return the ratio of bytes to encode to bytes of the files."""
    items = [Item(id=1, file=file) for file in files if (file.size_bytes or 0) > _SMALL_FILE]
    weight = sum(item.weight for item in items)
    return sum(map(estimate_cost, items)) / weight if weight else 1.0


def _malformed(sample: Sample) -> str:
    """Return how many of the records that were looked at are malformed."""
    return f"malformed records: {sample.bad} of {sample.bad + sample.records} looked at"


def _notes(sample: Sample) -> list[str]:
    notes = []
    if sample.first_bad is not None:
        location, line, reason = sample.first_bad
        notes.append(
            f"{_malformed(sample)}, the first one in {shown(location)}, line {line}: {reason}. "
            f"They will be quarantined; `on_bad_record` in the stream file says how many may be."
        )
    for error in sample.unread:
        line_of = "" if error.line is None else f", line {error.line}"
        notes.append(
            f"{shown(error.location)}{line_of}: {error.reason}. Its batch will fail; mend or move "
            f"the file, or set `on_bad_file: quarantine` in the stream file."
        )
    return notes


_MOST_COLUMNS = 50


def text_of(proposal: Proposal) -> str:
    """Write the stream file, with what was seen as comments."""
    machine, sample = proposal.machine, proposal.sample
    notes = {
        "batch.max_weight": (
            f"for {machine.cores} cores and {format_bytes(machine.memory_bytes)} of memory; the "
            f"largest file has {format_bytes(proposal.plan.largest_bytes)}"
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
    """Describe a proposal for programs."""
    sample, plan, source = proposal.sample, proposal.plan, proposal.stream.source
    first = sample.first_bad
    return {
        "stream": proposal.stream.name,
        "source": source.place,
        "files_found": proposal.files_found,
        "bytes_found": proposal.bytes_found,
        "include": proposal.attributes["source"]["include"],
        "exclude": proposal.attributes["source"].get("exclude", []),
        "format": source.format.value,
        "options": proposal.attributes["source"].get("options", {}),
        "left_out": [
            {"patterns": list(one.patterns), "files": one.files, "reason": one.reason}
            for one in proposal.left_out
        ],
        "columns": {one.name: one.type_text for one in sample.columns},
        "records_sampled": sample.records,
        "records_malformed": sample.bad,
        "first_malformed": first
        and {"location": first[0], "file": shown(first[0]), "line": first[1], "reason": first[2]},
        "max_weight": proposal.stream.limits.max_weight,
        "max_count": proposal.stream.limits.max_count,
        "plan": {
            "files": plan.files,
            "weight_bytes": plan.size_bytes,
            "batches": plan.batches,
            "oversized": plan.heavier,
        },
        "notes": list(proposal.notes),
    }
