"""Which checks the assets of a stream have, and of which jobs' batches. Names and values only."""

from collections.abc import Iterable
from dataclasses import dataclass

import dagster as dg

from batch_pipeline.defs.names import backfill_asset_key, batches_key, late_key, meta_table_key
from batch_pipeline.model.checks import Check
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.stream import Stream

_FILES = (Check.PART_FILES, Check.CHECKSUMS, Check.CONSERVATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An asset and its checks; `kinds` are the jobs whose batches it shows."""

    asset_key: dg.AssetKey
    checks: tuple[Check, ...]
    kinds: tuple[JobKind, ...]

    @property
    def in_runs(self) -> tuple[Check, ...]:
        """What a run that encodes asks at its end: all but what reads every byte again."""
        return tuple(check for check in self.checks if check is not Check.CHECKSUMS)

    def keys(self, checks: Iterable[Check]) -> list[dg.AssetCheckKey]:
        """Give the keys of those of some checks that the asset has."""
        chosen = [check for check in self.checks if check in set(checks)]
        return [dg.AssetCheckKey(self.asset_key, check.value) for check in chosen]


def asked_of_batches(stream: Stream) -> Asked:
    """Say what is asked of a stream's own batches."""
    checks = (*_FILES, Check.QUARANTINE, Check.SCHEMA_DRIFT)
    key = batches_key(stream)
    return Asked(asset_key=key, checks=checks, kinds=(JobKind.INCREMENTAL,))


def asked_of_backfills(stream: Stream) -> Asked:
    """Say what is asked of the batches of a stream's backfills."""
    key = backfill_asset_key(stream)
    return Asked(asset_key=key, checks=(*_FILES, Check.QUARANTINE), kinds=(JobKind.BACKFILL,))


def asked_of_late(stream: Stream) -> Asked:
    """Say what is asked of the batches of late arrivals."""
    return Asked(asset_key=late_key(stream), checks=_FILES, kinds=(JobKind.LATE,))


def asked_of_meta_table(stream: Stream) -> Asked:
    """Say what is asked of a stream's items."""
    checks = (Check.COVERAGE, Check.BACKLOG)
    key = meta_table_key(stream)
    return Asked(asset_key=key, checks=checks, kinds=(JobKind.INCREMENTAL, JobKind.LATE))


def all_asked(stream: Stream) -> tuple[Asked, ...]:
    """Say what is asked of all assets of a stream."""
    return (
        asked_of_meta_table(stream),
        asked_of_batches(stream),
        asked_of_backfills(stream),
        asked_of_late(stream),
    )
