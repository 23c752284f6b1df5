"""Read published batches: as Arrow tables, data frames or URIs of part files."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from batch_pipeline.inventory.database import Database
from batch_pipeline.load.batch_tables import common_schema, read_batches, read_table
from batch_pipeline.model.batch import IdRange, parse_late_key, stream_batch_key
from batch_pipeline.model.errors import (
    BatchNotPublishedError,
    ConfigurationError,
    UnknownBatchError,
    did_you_mean,
)
from batch_pipeline.model.job import OWN_KINDS, JobKind
from batch_pipeline.model.location import shown
from batch_pipeline.model.manifest import MAX_BYTES, Manifest, read_manifest
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Storage
from batch_pipeline.pipeline.reconcile import parsed_names
from batch_pipeline.storage.part_storage import PartFileStorage

_SHOWN_KEYS = 20

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class PublishedBatches(Sequence["PublishedBatches"]):
    """One or more published batches of a stream, each in its newest generation.

    Iterating yields the batches one by one. `to_arrow`, `to_polars`, `to_pandas` and `to_spark`
    return the records of all of them with the columns and types of `schema`: columns that a batch
    did not have yet are null, and nothing is inferred. Objects, arrays and columns of mixed types
    are JSON text.
    """

    stream: str
    manifests: tuple[Manifest, ...]

    @property
    def manifest(self) -> Manifest:
        """The manifest of the only batch.

        Raises:
            ConfigurationError: there are several batches, or none.
        """
        if len(self.manifests) != 1:
            raise ConfigurationError(
                f"{self.stream}: `manifest` needs a single batch, but there are "
                f"{len(self.manifests)}. Iterate over the batches, or use `manifests`."
            )
        return self.manifests[0]

    @property
    def files(self) -> tuple[str, ...]:
        """URIs of the part files, in record order within a batch."""
        return tuple(part.uri for manifest in self.manifests for part in manifest.part_files)

    @property
    def keys(self) -> tuple[str, ...]:
        """Partition keys of the batches; for late files in a storage root, ranges of ids."""
        return tuple(
            stream_batch_key(batch, self.stream) if batch.id else batch.key
            for batch in (manifest.batch for manifest in self.manifests)
        )

    @property
    def records(self) -> int:
        """Number of records in all batches."""
        return sum(manifest.records for manifest in self.manifests)

    @cached_property
    def schema(self) -> RecordSchema:
        """Columns of the newest schema version among the batches."""
        return common_schema(self.manifests)

    def to_arrow(self) -> "pa.Table":
        """Read the records into a table.

        Raises:
            BatchDataError: a part file is missing, or differs from what was published.
            RetryableError: the store of a part file cannot be reached.
        """
        return read_table(self.manifests, self.schema)

    def to_polars(self) -> "pl.DataFrame":
        """Read the records into a Polars DataFrame; raises the errors of `to_arrow`.

        Raises:
            ConfigurationError: polars is not installed.
        """
        frame: pl.DataFrame = _import("polars").from_arrow(self.to_arrow())
        return frame

    def to_pandas(self) -> "pd.DataFrame":
        """Read the records into a pandas DataFrame; raises the errors of `to_arrow`.

        Integers and booleans have pandas' nullable types, so that columns with nulls keep their
        values.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        return _to_pandas(self.to_arrow())

    def to_spark(self, session: "SparkSession") -> "DataFrame":
        """Return a lazy DataFrame of the records, with a task for each part file.

        The session may be classic or Spark Connect. Its Python workers read the files, so
        batch-pipeline must be installed there; `s3://` needs no Hadoop jars.
        """
        from batch_pipeline.spark.frames import batch_frame

        return batch_frame(session, self.manifests, self.schema, read_batches)

    def __len__(self) -> int:
        return len(self.manifests)

    def __getitem__(self, index: Any) -> "PublishedBatches":
        chosen = self.manifests[index]
        return PublishedBatches(self.stream, chosen if isinstance(chosen, tuple) else (chosen,))


class BatchSource(Protocol):
    """A source of published batches."""

    def partitions(self, stream: str, keys: Sequence[str]) -> PublishedBatches:
        """Return the newest generations of batches by partition key, in the order of the keys.

        Raises:
            ConfigurationError: there is no such stream.
            UnknownBatchError: a key matches no planned batch.
            BatchNotPublishedError: a batch is planned, but not published.
        """

    def current(self, stream: str) -> PublishedBatches:
        """Return all live batches of a stream: each item once, in its newest generation.

        Batches of backfills are excluded, since they repeat items.

        Raises:
            ConfigurationError: there is no such stream.
        """


@dataclass(frozen=True, slots=True)
class InventoryBatches:
    """The published batches of an inventory.

    A batch whose files were deleted after loading cannot be read: `ConfigurationError`.
    """

    database: Database

    def partitions(self, stream: str, keys: Sequence[str]) -> PublishedBatches:
        """Look up batches; a split batch raises `BatchSupersededError` with its parts."""
        database, manifests = self.database, []
        for key in keys:
            try:
                batch = database.batches.batch(stream, key, OWN_KINDS)
            except UnknownBatchError:
                self._check_known(stream)
                raise
            manifest = database.manifests.of_batch(batch)
            if manifest is None:
                raise BatchNotPublishedError(stream, key, database.batches.status(batch).state)
            if (removal := database.manifests.removal(manifest)) is not None:
                raise _removed(stream, f"the files of batch {key}", f" on {removal:%Y-%m-%d}")
            manifests.append(manifest)
        return PublishedBatches(stream, tuple(manifests))

    def current(self, stream: str) -> PublishedBatches:
        """Look up all live batches."""
        self._check_known(stream)
        live = self.database.manifests.published_after(stream, {}, backfills=False)
        # A batch that is published again between two pages is on both.
        newest = {manifest.batch.id: manifest for _, manifest in live}
        if count := self.database.manifests.count_removed_after(stream, {}, backfills=False):
            raise _removed(stream, f"the files of live batches ({count})")
        return PublishedBatches(stream, tuple(newest.values()))

    def _check_known(self, stream: str) -> None:
        known = self.database.jobs.streams()
        if stream not in known:
            raise _unknown_stream(stream, f"The inventory {self.database.location}", known)


@dataclass(frozen=True, slots=True)
class StoredBatches:
    """The published batches of a storage root, read from its manifest files; for tests of assets.

    Needs no inventory. Part files are looked up in the root itself, so that it may be a copy.
    """

    root: str

    def partitions(self, stream: str, keys: Sequence[str]) -> PublishedBatches:
        """Look up batches, including those of late arrivals, by range of ids.

        Raises:
            UnknownBatchError: no manifest file has the key.
        """
        # A late batch may have the range of one of the stream's own job, which takes precedence.
        stored = sorted(self._manifests(stream), key=lambda one: one[0] is JobKind.INCREMENTAL)
        newest = {manifest.batch.key: manifest for _, manifest in stored}
        for key in keys:
            if key not in newest:
                raise self._unknown_key(stream, key, sorted(newest))
        return PublishedBatches(stream, tuple(newest[key] for key in keys))

    def _unknown_key(self, stream: str, key: str, known: Sequence[str]) -> UnknownBatchError:
        more = f" and {len(known) - _SHOWN_KEYS} more" if len(known) > _SHOWN_KEYS else ""
        advice = " The number of a late batch is not in its manifest: give its range of ids."
        late = "" if parse_late_key(key) is None else advice
        return UnknownBatchError(
            f"{stream}: the storage root {shown(self.root)} has no manifest of {key!r}. Nothing "
            f"was read. Its batches: {', '.join(known[:_SHOWN_KEYS]) or 'none'}{more}.{late}"
        )

    def current(self, stream: str) -> PublishedBatches:
        """Look up all live batches."""
        manifests = (manifest for _, manifest in self._manifests(stream))
        return PublishedBatches(stream, tuple(manifests))

    def _manifests(self, stream: str) -> list[tuple[JobKind, Manifest]]:
        """Read the newest generation of each batch, in the order of jobs and ids."""
        files, known = PartFileStorage(Storage(root=self.root)), set()
        newest: dict[tuple[str, IdRange], tuple[JobKind, Manifest]] = {}
        for name, _ in parsed_names(files.manifest_names("")):
            text = files.read_manifest(name, MAX_BYTES)
            its_stream, kind, manifest = read_manifest(text, name, self.root)
            known.add(its_stream)
            key = (manifest.job, manifest.batch.id_range)
            if its_stream != stream or kind is JobKind.BACKFILL:
                continue
            if key not in newest or newest[key][1].generation < manifest.generation:
                newest[key] = kind, manifest
        if stream not in known:
            raise _unknown_stream(stream, f"The storage root {shown(self.root)}", sorted(known))
        return [newest[key] for key in sorted(newest)]


def _unknown_stream(stream: str, place: str, known: list[str]) -> ConfigurationError:
    hint = did_you_mean(stream, known) or f" Known: {', '.join(known) or 'none'}."
    return ConfigurationError(f"{place} has no stream {stream!r} with batches.{hint}")


def _removed(stream: str, what: str, when: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"{stream}: {what} were deleted{when} after loading, as configured in "
        f"`storage.keep_loaded`. Materialize the partition again to read it."
    )


def _to_pandas(table: "pa.Table") -> "pd.DataFrame":
    pandas = _import("pandas")
    nullable = {"int64": pandas.Int64Dtype(), "bool": pandas.BooleanDtype()}
    frame: pd.DataFrame = table.to_pandas(
        types_mapper=lambda arrow_type: nullable.get(str(arrow_type))
    )
    return frame


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"The package {module} is not installed. Install it, for example with "
            f"`uv add {module}`, or use `to_arrow`."
        ) from error
