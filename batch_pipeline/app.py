"""The composition root: builds the open parts of one home from its settings.

Each part is opened on first use, and all are closed together. Modules that need PyArrow or Spark
are imported when they are used, so that a client that only acquires batches loads neither.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from batch_pipeline.config.environment import Settings, load_settings
from batch_pipeline.config.home import Home
from batch_pipeline.config.stream_file import check_valid, load_streams, load_valid_streams
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.embedded_server import ensure_running
from batch_pipeline.inventory.meta_tables.chained_table import (
    PublishedSources,
    is_published,
    terms_of_job,
)
from batch_pipeline.inventory.meta_tables.connection import open_meta_engine
from batch_pipeline.inventory.meta_tables.own_table import OwnMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSources, UserMetaTable
from batch_pipeline.model.audit import Audit
from batch_pipeline.model.errors import (
    ConfigurationError,
    SettingError,
    StreamFileError,
    UnknownJobError,
    UnknownMetaTableError,
    UnknownStreamError,
)
from batch_pipeline.model.job import Job
from batch_pipeline.model.load import MessageMode, PostgresTarget, SingerTarget, Target
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.attempt import EncodeContext
from batch_pipeline.pipeline.collect_garbage import Collected, collect_garbage
from batch_pipeline.pipeline.load import FileCheck, LoadContext, Loader, Outcome, load
from batch_pipeline.pipeline.reconcile import (
    ensure_inventory_current,
    ensure_not_paused_as_older,
)
from batch_pipeline.spark.session import SparkSettings
from batch_pipeline.storage.filesystem import FileSystem
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.landing_poll import PolledLanding
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline.storage.verification import content_problem, problem_before_reading

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from batch_pipeline.encode.readers.decoded_file import ItemCutter
    from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
    from batch_pipeline.spark.diagnostics import SparkEngine


@dataclass(frozen=True)
class Pipeline:
    """The parts of one home, opened on first use and closed together.

    `environment` holds the variables that stream files name.
    """

    settings: Settings
    environment: Mapping[str, str] = field(
        default_factory=lambda: dict(os.environ), repr=False
    )  # it holds secrets
    _open_parts: ExitStack = field(default_factory=ExitStack, init=False, repr=False)
    _named_sources: dict[str, MetaSources] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> "Pipeline":
        """Read an environment, by default that of this process; `settings` take precedence."""
        given = dict(os.environ if environment is None else environment)
        return cls(load_settings(settings=settings, environment=given), given)

    @cached_property
    def home(self) -> Home:
        """The home folder; it is created if it does not exist."""
        home = Home(path=self.settings.home)
        home.ensure()
        return home

    @cached_property
    def streams(self) -> dict[str, Stream]:
        """All streams of the streams folder by name.

        Raises:
            ConfigurationError: there is no stream file.
            StreamFileError, ConfigurationError: a stream file is not valid.
        """
        return load_streams(self.settings.streams)

    @property
    def usable_streams(self) -> dict[str, Stream]:
        """The streams with valid files, by name; `stream_file_errors` has the errors of the others.

        Raises:
            ConfigurationError: there is no stream file.
            StreamFileError, ConfigurationError: none of the files is valid.
        """
        return self._read_stream_files[0] or self.streams

    @property
    def stream_file_errors(self) -> list[StreamFileError]:
        """The errors of stream files that are not valid."""
        return self._read_stream_files[1]

    @cached_property
    def _read_stream_files(self) -> tuple[dict[str, Stream], list[StreamFileError]]:
        return load_valid_streams(self.settings.streams)

    @cached_property
    def database_url(self) -> str:
        """URL of the inventory's server; the embedded server is started."""
        configured = self.settings.inventory_conn
        if configured is None:
            return ensure_running(self.home.postgres)
        return configured.get_secret_value()

    @cached_property
    def database(self) -> Database:
        """The open inventory; an embedded one is migrated, a configured one must be current."""
        is_embedded = self.settings.inventory_conn is None
        database = open_database(self.database_url, migrated=is_embedded)
        self._open_parts.callback(database.close)
        return database

    @cached_property
    def meta_engine(self) -> "Engine":
        """Connections to the database of users' meta tables; by default the inventory's server."""
        configured = self.settings.meta_conn
        secret = None if configured is None else configured.get_secret_value()
        return self._disposed(open_meta_engine(secret or self.database_url))

    @cached_property
    def meta_sources(self) -> MetaSources:
        """Users' meta tables, by name."""
        return MetaSources(self.meta_engine, self.database.engine)

    @cached_property
    def published_sources(self) -> PublishedSources:
        """The published results of jobs as meta tables; always on the inventory's server."""
        own = self.settings.meta_conn is None
        engine = self.meta_engine if own else self._disposed(open_meta_engine(self.database_url))
        return PublishedSources(engine, self.database.engine)

    def sources_of(self, meta_table: str) -> MetaSources:
        """Return the set of meta tables to which a table of this name belongs.

        Raises:
            InvalidValueError: the name is not `table` or `schema.table`.
        """
        return self.published_sources if is_published(meta_table) else self.meta_sources

    @cached_property
    def spark(self) -> SparkSettings:
        """Settings of Spark sessions."""
        remote = self.settings.spark_remote
        return SparkSettings(
            home=self.home.path,
            remote=None if remote is None else remote.get_secret_value(),
            master=self.settings.spark_master,
            packed=self.settings.spark_packed,
            keep_minutes=self.settings.spark_keep_minutes,
        )

    def migrate(self) -> tuple[str, str, str]:
        """Migrate the inventory to this release; return old revision, new revision and location.

        Raises:
            ConfigurationError: there is no embedded inventory yet.
        """
        home = Home(path=self.settings.home)
        if self.settings.inventory_conn is None and not home.postgres.is_dir():
            raise ConfigurationError(
                f"There is no inventory in {home.path}. Nothing was created. Change to the folder "
                f"of your project, or set BATCH_PIPELINE_HOME or BATCH_PIPELINE_INVENTORY_CONN; "
                f"`batch-pipeline run` creates a new embedded inventory."
            )
        with closing(open_database(self.database_url, migrated=None)) as database:
            return *database.migrate(), database.location

    def stream(self, name: str) -> Stream:
        """Return a stream by name; the files of other streams may be invalid.

        Raises:
            StreamFileError, ConfigurationError: its file is not valid, or no file is.
            UnknownStreamError: there is no such stream.
        """
        check_valid(name, self.stream_file_errors)
        known = self.usable_streams
        if name not in known:
            raise UnknownStreamError(name, tuple(known), str(self.settings.streams))
        return known[name]

    def meta_table(self, stream: Stream) -> OwnMetaTable | UserMetaTable:
        """Return the meta table of a stream: our own, or the user's.

        Raises:
            SettingError: the variable that names the user's database is not set or is not a URL.
        """
        described = stream.user_table
        if described is None:
            return self.database.meta_table(stream.name)
        return UserMetaTable(
            inventory=self.database.engine,
            stream=stream.name,
            sources=self._sources_at(stream, described.conn),
            table_source=described,
            on_bad_file=stream.on_bad_file.missing,
        )

    def job(self, name: str, meta_table: str | None = None) -> Job:
        """Return a job by name and, if given, by its meta table in any spelling.

        Raises:
            UnknownJobError: there is no such job.
            AmbiguousJobError: several meta tables have a job of this name.
            MetaUnreachableError: the database of the meta table cannot be reached.
        """
        jobs = self.database.jobs
        try:
            return jobs.find(name, meta_table)  # in the inventory's spelling
        except UnknownJobError as unknown:
            if meta_table is None:
                raise
            try:
                canonical = self.sources_of(meta_table).canonical_name(meta_table)
            except UnknownMetaTableError:  # perhaps in another database, which needs the full name
                raise unknown from None
        return jobs.find(name, canonical)

    def items_of(self, job: Job) -> "ReflectedMetaTable":
        """Return the table with the items of a job: a stream's, or a user's.

        Raises:
            PipelineError: the user's table cannot be read.
        """
        if job.stream is not None:
            own = self.database.meta_table(job.stream).reflected()
            if job.meta_table == own.canonical_name:
                return own
            return self.meta_table(self.stream(job.stream)).reflected()
        terms = terms_of_job(self.database.engine, job)
        return self.sources_of(job.meta_table).table(terms)

    def audit(self, stream: Stream, since: timedelta | None) -> Audit | None:
        """Audit batches published within `since` (None: all); return None before the first plan."""
        table = self.meta_table(stream).reflected()
        try:
            return self.database.late_arrivals.audit(
                stream.name, table, limits=stream.limits, since=since
            )
        except UnknownJobError:
            return None

    def landing(self, stream: Stream, *, wait: bool) -> SourceLanding:
        """Return the landing of a stream; with `wait`, listings wait for files being written."""
        return SourceLanding(stream=stream, wait=wait)

    def watched_landing(
        self, stream: Stream, *, wait: bool, filesystem: FileSystem | None = None
    ) -> PolledLanding:
        """Return a landing of a stream that keeps state between polls.

        With `wait` a poll lists everything and waits for files being written; otherwise it lists
        as much as one sensor tick can take. `filesystem` replaces that of the landing's URI.
        """
        landing = SourceLanding(stream=stream, wait=wait, filesystem=filesystem)
        return PolledLanding(landing, limit=None if wait else landing.files.list_limit)

    def cutter(self, stream: Stream) -> "ItemCutter | None":
        """Return the cutter of large files, or None if each file of the stream is one item."""
        if stream.max_item_bytes is None:
            return None
        from batch_pipeline.encode.readers.decoded_file import ItemCutter  # pyarrow: 0.2 s

        return ItemCutter(stream=stream, most_bytes=stream.max_item_bytes)

    def storage(self, stream: Stream) -> PartFileStorage:
        """Return the storage of a stream."""
        return PartFileStorage(stream.storage)

    def encode_context(self, stream: Stream, engine: "Callable[[], SparkEngine]") -> EncodeContext:
        """Return the parts that encode a stream's batches; `engine` returns the Spark engine."""
        from batch_pipeline.spark.encoder import SparkEncoder  # pyarrow: 0.2 s

        return EncodeContext(
            stream=stream,
            meta_table=self.meta_table(stream),
            schemas=self.database.schemas,
            attempts=self.database.attempts,
            encoder=SparkEncoder(engine),
            storage=self.storage(stream),
        )

    def collect_garbage(
        self,
        stream: Stream,
        others: Iterable[Stream],
        *,
        with_unknown: bool = False,
        dry_run: bool = False,
    ) -> Collected:
        """Delete the garbage of a stream; `others` are all streams that may share its storage.

        Raises:
            GarbageLeftError: a file cannot be listed or deleted.
            InventoryOlderError: the storage has manifests that the inventory does not know.
        """
        ensure_inventory_current(self.database, stream)
        return collect_garbage(
            stream,
            others,
            self.database.stored_attempts,
            self.storage(stream),
            with_unknown=with_unknown,
            dry_run=dry_run,
        )

    def load_pending(
        self, stream: Stream, target: Target, *, run_id: str, only: Collection[str] | None = None
    ) -> Iterator[Outcome]:
        """Load the pending generations of a stream into a target; yield an outcome for each.

        `only` has the names of batches to load; None loads all.

        Raises:
            PipelineError: nothing more can be loaded now; earlier loads are kept.
        """
        ensure_not_paused_as_older(self.database, stream)
        with closing(self.loader(stream, target)) as loader:
            yield from load(
                LoadContext(
                    stream=stream,
                    target=target.name,
                    loads=self.database.loads,
                    loader=loader,
                    problem_of=_file_check(target),
                    run_id=run_id,
                    in_order=target.keeps_last and bool(stream.message_keys),
                    only=only,
                )
            )

    def loader(self, stream: Stream, target: Target) -> Loader:
        """Return the loader of a target; close it after use.

        Raises:
            SettingError: the variable that names the target's database is not set.
        """
        if isinstance(target, PostgresTarget):
            from batch_pipeline.load.postgres import PostgresLoader

            key = f"targets.{target.name}.postgres.conn"
            url = self.named_url(stream, target.conn, key)
            return PostgresLoader(target, url, lineage=stream.lineage)
        if not isinstance(target, SingerTarget):
            raise TypeError(type(target))
        from batch_pipeline.load.singer_loader import SingerLoader

        return SingerLoader(
            stream=stream.name,
            target=target,
            environment=self.environment,
            on_nonfinite=stream.on_nonfinite,
        )

    def close(self) -> None:
        """Close all open parts; the embedded server stops with its last client process."""
        self._open_parts.close()

    def _disposed(self, engine: "Engine") -> "Engine":
        """Register an engine to be disposed by `close`, and return it."""
        self._open_parts.callback(engine.dispose)
        return engine

    def _sources_at(self, stream: Stream, conn: str | None) -> MetaSources:
        """Return the meta tables of the database that a stream file names."""
        if conn is None:
            return self.meta_sources
        if conn not in self._named_sources:
            name = conn[1:] if conn.startswith("$") else "source.meta_table.conn"
            url = self.named_url(stream, conn, "source.meta_table.conn")
            engine = self._disposed(open_meta_engine(url, setting=name))
            self._named_sources[conn] = MetaSources(engine, self.database.engine)
        return self._named_sources[conn]

    def named_url(self, stream: Stream, conn: str, key: str) -> str:
        """Return the URL of a database that a stream file names at a key.

        Raises:
            SettingError: the variable that holds it is not set.
        """
        if not conn.startswith("$"):
            return conn
        url = self.environment.get(conn[1:])
        if not url:
            where = f"{key} of the stream {stream.name}"
            step = "Set it to the URL of the database that has the table, then run again."
            raise SettingError(conn[1:], where, "this variable is not set", step)
        return url


def _file_check(target: Target) -> FileCheck:
    """Return the check of part files before a load; a loader may verify their bytes itself."""
    if isinstance(target, SingerTarget) and target.messages is not MessageMode.RECORD:
        return content_problem
    return problem_before_reading
