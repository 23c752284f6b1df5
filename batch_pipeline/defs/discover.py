"""Stations 1 to 4 for Dagster: register, plan, and show every batch as a partition.

Who looks again and again brings a `Look`, which remembers what need not be read once more; it may
be a new one at any time.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

import dagster as dg

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.heard import Heard, Known
from batch_pipeline.defs.partitioned import backfills_of, batches_of
from batch_pipeline.inventory.meta_tables.registered_table import OwnMetaTable
from batch_pipeline.inventory.meta_tables.user_table import UserMetaTable
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.item import Registered
from batch_pipeline.model.planning import Planned
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.reconcile import reconcile
from batch_pipeline.pipeline.restore_check import CheckedInventory, ensure_inventory_current
from batch_pipeline.storage.filesystem import FileSystem, filesystem_of
from batch_pipeline.storage.landing_poll import PolledLanding
from batch_pipeline.storage.s3 import S3FileSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """What one look at the landing brought; `troubles` kept it from some files."""

    registered: Registered
    planned: Planned
    known: Known
    troubles: tuple[PipelineError, ...] = ()


LOOKS_TO_A_FULL_ONE = 120


@dataclass(slots=True)
class _Remembered:
    """What looks have found; `landing` knows the files of a meta table that begins at `beginning`,
    and `pointed` are the numbers of publishes at which every manifest had its manifest file.
    `checked` is the database that was as new as the storage.
    """

    heard: Heard
    landing: PolledLanding | None = None
    beginning: datetime | None = None
    pointed: Mapping[int, int] | None = None
    checked: CheckedInventory = field(default_factory=CheckedInventory)


class Look:
    """What one process remembers of a stream from look to look; one look at a time.

    Every so many-th look compares everything, for partitions, events and rows can be removed by
    hand, and a database be put back.
    """

    def __init__(self, *, in_ticks: bool = True, full_every: int = LOOKS_TO_A_FULL_ONE) -> None:
        self._full_every = full_every
        self._in_ticks = in_ticks
        self._turn = threading.Lock()
        self._looks = 0
        self._remembered = _Remembered(heard=Heard(in_ticks=in_ticks))

    @contextmanager
    def turn(self) -> Iterator[_Remembered]:
        """Wait for who looks at present and give what is remembered."""
        with self._turn:
            if self._looks % self._full_every == 0:
                self._remembered = self._begun_anew()
            self._looks += 1
            yield self._remembered

    def _begun_anew(self) -> _Remembered:
        before, anew = self._remembered, _Remembered(heard=Heard(in_ticks=self._in_ticks))
        if before.landing is not None:
            before.landing.forget()
            anew.landing, anew.beginning = before.landing, before.beginning
        return anew


def lands_in_s3(stream: Stream) -> bool:
    """Return whether a landing is listed with Dagster's resource of S3."""
    return isinstance(filesystem_of(stream.source.place), S3FileSystem)


def discover(
    pipeline: Pipeline,
    stream: Stream,
    instance: dg.DagsterInstance,
    *,
    drain: bool,
    look: Look | None = None,
    filesystem: FileSystem | None = None,
) -> Discovered:
    """Look for new files, plan them, and compare the inventory with what Dagster knows.

    Changes the inventory only, never a user's own meta table; the caller adds partitions and
    reports events. `drain` waits for files that are being written and plans even a small last
    batch. `filesystem` replaces that of the landing's URI.

    Raises:
        InventoryOlderError: the storage has manifests that the inventory does not know.
    """
    with (look or Look(in_ticks=False)).turn() as remembered:
        _reconcile(pipeline, stream, remembered)
        table = pipeline.meta_table(stream)
        registered = Registered(found=0, new_items=0)
        troubles: tuple[PipelineError, ...] = ()
        if not isinstance(table, UserMetaTable):  # the rows of a user's table are the items
            landing = _landing(
                pipeline, stream, table, remembered, wait=drain, filesystem=filesystem
            )
            registered = table.register(landing.found_files(), cutter=pipeline.cutter(stream))
            registered = landing.settled(registered)
            troubles = (*landing.troubles,)
        planned = pipeline.database.batches.plan(table, stream.limits, drain=drain)
        known = remembered.heard.look(pipeline, stream, batches_of(stream), instance)
    return Discovered(registered=registered, planned=planned, known=known, troubles=troubles)


def look_at_batches(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, look: Look | None = None
) -> Known:
    """Do what `discover` does without registering or planning anything."""
    with (look or Look(in_ticks=False)).turn() as remembered:
        _reconcile(pipeline, stream, remembered)
        return remembered.heard.look(pipeline, stream, batches_of(stream), instance)


def look_at_backfills(
    pipeline: Pipeline, stream: Stream, instance: dg.DagsterInstance, look: Look | None = None
) -> Known:
    """Close what a crash left open, and compare the backfills of a stream with Dagster's keys."""
    with (look or Look(in_ticks=False)).turn() as remembered:
        _reconcile(pipeline, stream, remembered)
        return remembered.heard.look(pipeline, stream, backfills_of(stream), instance)


def _reconcile(pipeline: Pipeline, stream: Stream, remembered: _Remembered) -> None:
    """Close what a crash left open; manifest files are looked for after something was published.

    Nothing is done where the inventory is older than the storage.
    """
    ensure_inventory_current(pipeline.database, stream, remembered.checked)
    database = pipeline.database
    counts = database.change_feed.publish_counts(stream.name)
    if counts == remembered.pointed:
        database.attempts.close_dead(stream.name)
        return
    done = reconcile(stream.name, database.attempts, database.manifests, pipeline.storage(stream))
    for trouble in done.troubles:  # no reason not to register and plan; the hourly job fails of it
        logging.getLogger("batch_pipeline").warning("%s: %s", stream.name, trouble)
    remembered.pointed = counts


def _landing(
    pipeline: Pipeline,
    stream: Stream,
    table: OwnMetaTable,
    remembered: _Remembered,
    *,
    wait: bool,
    filesystem: FileSystem | None,
) -> PolledLanding:
    """Give the landing as it is remembered, unless the meta table was begun anew since."""
    beginning = table.first_registered_at()
    landing = remembered.landing
    if landing is None or beginning != remembered.beginning:
        landing = pipeline.watched_landing(stream, wait=wait, filesystem=filesystem)
        remembered.landing, remembered.beginning = landing, beginning
    return landing
