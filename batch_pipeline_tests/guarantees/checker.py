"""Judges what processes have left behind: what was lost, what is there twice, what is in the way.

It knows what must hold, and nothing of how the product makes it so: no line of it is used here.
All work must have been done before it is asked, so that whatever is not published is lost.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from batch_pipeline_tests.guarantees.evidence import (
    Connection,
    Evidence,
    Listed,
    LiveBatch,
    Names,
    Part,
    Try,
    UnreadableError,
    ids_in,
    octets_of,
    part_octets,
    place_of,
    read_evidence,
)

_OF_ATTEMPT = re.compile(r"\.?.+-a[0-9]+-([0-9a-f]{8})-.+")
_LEFT_ASIDE = re.compile(r"\..+\.tmp|\.probe-[0-9a-f]{32}")
_SHOWN = 5


class Kind(StrEnum):
    """What can be wrong."""

    LOST = "lost"  # an item, or a record of it, is in no published live batch
    TWICE = "twice"  # an item, or a record of it, is in two of them
    UNREADABLE = "unreadable"  # a published file is not there, cut off, or another one
    ORPHAN = "orphan"  # a file that nothing names and no ended attempt explains
    OPEN = "left open"  # an attempt or a load that nobody ends
    POINTER = "pointer"  # a manifest file is missing, says another thing, or is one too many
    TARGET_LOST = "rows lost"
    TARGET_TWICE = "rows twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong, how often, and a sentence that says where."""

    kind: Kind
    sentence: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was looked at and what is wrong; `garbage` are files of attempts that ended unpublished
    and of processes that died, which are the garbage collection's to take.
    """

    items: int
    records: int
    files: int
    garbage: int
    faults: tuple[Fault, ...]

    def count(self, kind: Kind) -> int:
        """Count what is wrong in one way."""
        return sum(fault.count for fault in self.faults if fault.kind is kind)

    def __str__(self) -> str:
        """Say it all."""
        looked = f"{self.items} items, {self.records} records, {self.files} files"
        return "\n".join([looked, *(f"{one.kind}: {one.sentence}" for one in self.faults)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """A table that has the records of a stream: each row once, each key once with `by_key`."""

    stream: str
    table: Names
    by_key: bool = False


@dataclass(slots=True)
class _Case:
    """The evidence, and what the part files of each attempt hold."""

    evidence: Evidence
    held: dict[int, Counter[int]]
    landed: dict[tuple[str, int], Counter[int]]
    torn: str


def check(
    url: str,
    storages: Sequence[Path],
    *,
    tables: Sequence[Listed] = (),
    warehouses: Sequence[Warehouse] = (),
    torn: str = "",
) -> Verdict:
    """Judge an inventory, its storage roots and the tables that were loaded from them.

    Lines of landed files that hold the mark `torn` are no records.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        evidence = read_evidence(connection, tables)
        case = _Case(evidence, {}, {}, torn)
        faults = [*_files(case), *_landed(case), *_items(evidence), *_batches(case)]
        faults += [*_pointers(evidence), *_left_open(evidence)]
        for warehouse in warehouses:
            faults += _rows(connection, case, warehouse)
    orphans, garbage, files = _stored(evidence, storages)
    return Verdict(
        items=sum(len(items) for items in evidence.items.values()),
        records=sum(counts.total() for counts in case.landed.values()),
        files=files,
        garbage=garbage,
        faults=(*faults, *orphans),
    )


def _files(case: _Case) -> Iterator[Fault]:
    """Read every file of every published generation."""
    for attempt_id, parts in case.evidence.parts.items():
        held: Counter[int] = Counter()
        for part in parts:
            try:
                octets = part_octets(part)
                if part.quarantine:
                    continue
                ids = ids_in(octets, part.uri)
            except UnreadableError as error:
                yield Fault(kind=Kind.UNREADABLE, sentence=str(error))
                continue
            if ids.total() != part.records:
                sentence = f"{part.uri} holds {ids.total()} records, told were {part.records}"
                yield Fault(kind=Kind.UNREADABLE, sentence=sentence)
            held += ids
        case.held[attempt_id] = held


def _landed(case: _Case) -> Iterator[Fault]:
    for stream, items in case.evidence.items.items():
        for uid, location in items.items():
            try:
                octets = octets_of(location)
                case.landed[stream, uid] = ids_in(octets, location, torn=case.torn)
            except UnreadableError as error:
                yield Fault(kind=Kind.LOST, sentence=f"item {uid} of {stream}: {error}")


def _items(evidence: Evidence) -> Iterator[Fault]:
    """Expect each item once in the batches of its stream, at most once in those of a backfill."""
    times: dict[tuple[str, str], Counter[int]] = {}
    for batch in evidence.batches:
        of = times.setdefault((batch.stream, _chain(batch)), Counter())
        of.update(evidence.lineage.get(batch.attempt_id or 0, ()))
    for stream, items in evidence.items.items():
        found = times.get((stream, ""), Counter())
        for uid in sorted(items.keys() - found.keys()):
            sentence = f"item {uid} of {stream} is in no published live batch"
            yield Fault(kind=Kind.LOST, sentence=sentence)
    for (stream, chain), found in times.items():
        for uid in sorted(uid for uid, count in found.items() if count > 1):
            where = f"{found[uid]} live batches of {chain or stream}"
            yield Fault(kind=Kind.TWICE, sentence=f"item {uid} of {stream} is in {where}")


def _chain(batch: LiveBatch) -> str:
    """Name the jobs that share items: the stream's own with its late one, or a single backfill."""
    return batch.job if batch.kind == "backfill" else ""


def _batches(case: _Case) -> Iterator[Fault]:
    """Expect a batch to be published, with exactly the records of its items."""
    for batch in case.evidence.batches:
        if batch.attempt_id is None:
            yield Fault(kind=Kind.LOST, sentence=f"{batch.name} is not published")
            continue
        expected: Counter[int] = Counter()
        for uid in case.evidence.lineage.get(batch.attempt_id, ()):
            expected += case.landed.get((batch.stream, uid), Counter())
        held = case.held.get(batch.attempt_id, Counter())
        lost, twice = Kind.LOST, Kind.TWICE
        yield from _compared(expected, held, f"part files of {batch.name}", lost, twice)


def _compared(
    expected: Counter[int], found: Counter[int], where: str, lost: Kind, twice: Kind
) -> Iterator[Fault]:
    for kind, ids in ((lost, expected - found), (twice, found - expected)):
        if ids:
            shown = ", ".join(map(str, sorted(ids)[:_SHOWN]))
            lacks = "lack" if kind is lost else "have too often"
            sentence = f"{where} {lacks} {ids.total()} records: {shown}"
            yield Fault(kind=kind, sentence=sentence, count=ids.total())


def _pointers(evidence: Evidence) -> Iterator[Fault]:
    """Expect a manifest file for each generation, which says what the inventory says."""
    for one in evidence.attempts.values():
        if one.status != "succeeded":
            continue
        if one.pointer_uri is None:
            yield Fault(kind=Kind.POINTER, sentence=f"{one.name} has no manifest file")
            continue
        try:
            told = json.loads(octets_of(one.pointer_uri))
        except (UnreadableError, ValueError) as error:
            yield Fault(kind=Kind.POINTER, sentence=f"the pointer of {one.name}: {error}")
            continue
        if not _says(told, one, evidence.parts.get(one.id, [])):
            sentence = f"{one.pointer_uri} says another thing than the inventory of {one.name}"
            yield Fault(kind=Kind.POINTER, sentence=sentence)


def _says(told: Any, one: Try, parts: Sequence[Part]) -> bool:
    named = [
        (part["uri"], part["records"], part["size_bytes"], part["sha256"])
        for part in [*told["part_files"], *told["quarantine_files"]]
    ]
    rows = [(part.uri, part.records, part.size_bytes, part.sha256) for part in parts]
    return (told["token"], told["generation"], named) == (one.token, one.generation, rows)


def _left_open(evidence: Evidence) -> Iterator[Fault]:
    for one in evidence.attempts.values():
        if one.status == "running":
            yield Fault(kind=Kind.OPEN, sentence=f"{one.name} is running")
    for name in evidence.open_loads:
        yield Fault(kind=Kind.OPEN, sentence=f"load {name} is running")


def _stored(evidence: Evidence, storages: Sequence[Path]) -> tuple[list[Fault], int, int]:
    """Tell the files that nothing explains, how many are garbage, and how many there are."""
    named = {place_of(part.uri) for parts in evidence.parts.values() for part in parts}
    tries = evidence.attempts.values()
    named |= {place_of(one.pointer_uri) for one in tries if one.pointer_uri is not None}
    ended = {one.token[:8] for one in tries if one.status != "running"}
    faults, garbage, files = [], 0, 0
    for path in (path for root in storages for path in root.rglob("*") if path.is_file()):
        files += 1
        if path in named:
            continue
        of_attempt = _OF_ATTEMPT.fullmatch(path.name)
        if (of_attempt and of_attempt[1] in ended) or _LEFT_ASIDE.fullmatch(path.name):
            garbage += 1
            continue
        kind = Kind.POINTER if path.parent.name == "manifests" else Kind.ORPHAN
        faults.append(Fault(kind=kind, sentence=f"nothing names {path}"))
    return faults, garbage, files


def _rows(connection: Connection, case: _Case, warehouse: Warehouse) -> Iterator[Fault]:
    expected: Counter[int] = Counter()
    for (stream, _), ids in case.landed.items():
        if stream == warehouse.stream:
            expected += ids
    if warehouse.by_key:
        expected = Counter(expected.keys())
    name = ".".join(warehouse.table)
    found: Counter[int] = Counter()
    if connection.execute("SELECT to_regclass(%s)", [name]).fetchone() != (None,):
        query = sql.SQL("SELECT id, count(*) FROM {} GROUP BY id")
        rows = connection.execute(query.format(sql.Identifier(*warehouse.table)))
        found = Counter(dict(rows))
    yield from _compared(expected, found, f"rows of {name}", Kind.TARGET_LOST, Kind.TARGET_TWICE)
