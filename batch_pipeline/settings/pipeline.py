"""Puts the adapters together: the one place that knows which class fulfils which port.

Nothing is opened before it is asked for.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from batch_pipeline.domain.errors import UnknownStreamError
from batch_pipeline.domain.stream import Stream
from batch_pipeline.files.landing import FolderLanding
from batch_pipeline.files.storage import FolderStorage
from batch_pipeline.inventory.database import Database, database_url, open_database
from batch_pipeline.inventory.meta_table import OwnMetaTable
from batch_pipeline.settings.environment import Settings, load_settings
from batch_pipeline.settings.home import Home
from batch_pipeline.settings.stream_file import load_streams
from batch_pipeline.spark.session import SparkSettings
from batch_pipeline.steps.encode import Workshop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Pipeline:
    """The parts of one home, opened on first use and closed together."""

    settings: Settings

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Pipeline":
        """Read the settings from the process's environment."""
        return cls(load_settings(environment=os.environ if environment is None else environment))

    @cached_property
    def home(self) -> Home:
        """The home folder, made if need be."""
        home = Home(path=self.settings.home)
        home.ensure()
        return home

    @cached_property
    def streams(self) -> dict[str, Stream]:
        """All streams of the streams folder by name."""
        return load_streams(self.settings.streams)

    @cached_property
    def database_url(self) -> str:
        """URL of the inventory's server; the embedded one is started."""
        configured = self.settings.inventory_conn
        secret = None if configured is None else configured.get_secret_value()
        return database_url(secret, self.home.postgres)

    @cached_property
    def database(self) -> Database:
        """The open inventory. An embedded one is migrated; a configured one must be already."""
        return open_database(self.database_url, migrated=self.settings.inventory_conn is None)

    @cached_property
    def spark(self) -> SparkSettings:
        """How to get a Spark session."""
        remote = self.settings.spark_remote
        return SparkSettings(
            home=self.home.path,
            remote=None if remote is None else remote.get_secret_value(),
            master=self.settings.spark_master,
        )

    def migrate(self) -> tuple[str, str, str]:
        """Bring the inventory to this release's revision; gives before, after and where."""
        database = open_database(self.database_url, migrated=None)
        try:
            return *database.migrate(), database.location
        finally:
            database.close()

    def stream(self, name: str) -> Stream:
        """Find a stream by name.

        Raises:
            UnknownStreamError: there is none.
        """
        if name not in self.streams:
            known = tuple(self.streams)
            raise UnknownStreamError(name, known, str(self.settings.streams))
        return self.streams[name]

    def meta_table(self, stream: Stream) -> OwnMetaTable:
        """Give the table that lists a stream's items."""
        return self.database.meta_table(stream.name)

    def landing(self, stream: Stream, *, wait: bool) -> FolderLanding:
        """Give the landing of a stream; `wait` waits for files that are being written."""
        return FolderLanding(stream=stream, wait=wait)

    def storage(self, stream: Stream) -> FolderStorage:
        """Give the storage of a stream."""
        return FolderStorage(stream.storage)

    def workshop(self, stream: Stream, session: "Callable[[], SparkSession]") -> Workshop:
        """Give what encoding a stream's batches needs; `session` gives the Spark session to use."""
        from batch_pipeline.spark.encoder import SparkEncoder  # pyarrow: 0.2 s

        return Workshop(
            stream=stream,
            meta_table=self.meta_table(stream),
            schemas=self.database.schemas,
            attempts=self.database.attempts,
            encoder=SparkEncoder(session),
            storage=self.storage(stream),
        )

    def close(self) -> None:
        """Close what was opened; the embedded server stops with its last process."""
        if "database" in self.__dict__:
            self.database.close()
