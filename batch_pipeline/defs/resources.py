"""Resources of runs and sensors: the pipeline and the Spark session."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from batch_pipeline.app import Pipeline
from batch_pipeline.config.home import Home
from batch_pipeline.defs.names import PIPELINE_RESOURCE, S3_RESOURCE
from batch_pipeline.inventory.embedded_server import find_server
from batch_pipeline.model.errors import ConfigurationError, SparkUnavailableError
from batch_pipeline.model.stream import Stream
from batch_pipeline.spark.session import SparkSettings, open_engine, open_session
from batch_pipeline.storage.filesystem import FileSystem, filesystem_of
from batch_pipeline.storage.s3 import S3FileSystem

if TYPE_CHECKING:
    from batch_pipeline.spark.diagnostics import SparkEngine

_MAX_SPARK_OUTAGE_SECONDS = 120
_PAUSE_SECONDS = 1


def lands_in_s3(stream: Stream) -> bool:
    """Return whether the landing of a stream is listed with the S3 resource."""
    return isinstance(filesystem_of(stream.source.place), S3FileSystem)


def landing_resources(stream: Stream) -> set[str]:
    """Return the keys of the resources that register the files of a stream."""
    return {PIPELINE_RESOURCE, *([S3_RESOURCE] if lands_in_s3(stream) else [])}


def landing_filesystem(stream: Stream, resources: Any) -> FileSystem | None:
    """Return the file system of the S3 resource for a stream that lands in S3, else None."""
    if not lands_in_s3(stream):
        return None
    client = resources.batch_pipeline_s3  # Dagster passes the resource's client
    return S3FileSystem(lambda: client)


def stores_in_s3(stream: Stream) -> bool:
    """Return whether the part files of a stream are in S3."""
    return isinstance(filesystem_of(stream.storage.root), S3FileSystem)


class InventoryResource(dg.ConfigurableResource[Any]):
    """Where the inventory is. A field that is not set is taken from the environment.

    The embedded server is used if it runs already, but never started: commands of batch-pipeline
    and its instance storage start it.
    """

    inventory_conn: str | None = Field(
        default=None,
        description="Postgres URL of the inventory, preferably a `dg.EnvVar`; default "
        "BATCH_PIPELINE_INVENTORY_CONN.",
    )
    home: str | None = Field(
        default=None,
        description="Folder of logs and of the embedded server; default BATCH_PIPELINE_HOME.",
    )

    _pipeline: Pipeline | None = PrivateAttr(default=None)

    @property
    def pipeline(self) -> Pipeline:
        """The open pipeline; opened on first use.

        Raises:
            ConfigurationError: no inventory is configured, and no embedded server runs.
            SettingError: a field or variable is not valid.
        """
        if self._pipeline is None:
            self._pipeline = self._open()
        return self._pipeline

    def settings_fields(self) -> dict[str, Any]:
        """Return the fields that are settings, by name."""
        return {"inventory_conn": self.inventory_conn, "home": self.home}

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the connections of the run."""
        self.close()

    def close(self) -> None:
        """Close all connections; the next use opens them again."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None

    def _open(self) -> Pipeline:
        pipeline = Pipeline.from_environment(settings=self.settings_fields())
        home, is_embedded = pipeline.settings.home, pipeline.settings.inventory_conn is None
        if is_embedded and find_server(Home(path=home).postgres) is None:
            raise ConfigurationError(
                f"No inventory: the embedded PostgreSQL of {home} does not run, and resources of "
                f"Dagster do not start it. Set BATCH_PIPELINE_INVENTORY_CONN, or the field "
                f"`inventory_conn` of the resource, to the URL of a Postgres database; or start "
                f"`batch-pipeline dev`."
            )
        return pipeline


class PipelineResource(InventoryResource):
    """The inventory, landings and storages of the streams of a code location."""

    streams: str | None = Field(
        default=None,
        description="Folder of stream files, for messages; default BATCH_PIPELINE_STREAMS.",
    )

    def settings_fields(self) -> dict[str, Any]:
        """Return the fields that are settings, by name."""
        return {**super().settings_fields(), "streams": self.streams}


class SparkResource(LazyPySparkResource):
    """The Spark session of the process: Spark Connect if an address is set, else a local one.

    A field that is not set is taken from the environment. The session outlives the run, so that
    runs of one process share it.
    """

    spark_config: dict[str, Any] = Field(
        default_factory=dict, description="Spark configuration of the session."
    )
    master: str | None = Field(
        default=None, description="Spark master; default BATCH_PIPELINE_SPARK_MASTER or local[*]."
    )
    remote: str | None = Field(
        default=None,
        description="Spark Connect URL, preferably a `dg.EnvVar`; default "
        "BATCH_PIPELINE_SPARK_REMOTE.",
    )

    _settings: SparkSettings | None = PrivateAttr(default=None)
    _engine: "SparkEngine | None" = PrivateAttr(default=None)

    def engine_of(
        self, stream: Stream, settings: SparkSettings, *, is_retry: bool
    ) -> "Callable[[], SparkEngine]":
        """Return a function that returns the engine for a stream, and opens it on first use.

        For a stream with a transform it is the session. A retry opens a working engine at once,
        trying for at most two minutes.
        """
        settings = self._with_fields(settings)
        self._settings = settings if stream.transform is None else settings.unshared()
        opened = self._open_engine if stream.transform is None else lambda: self.spark_session
        if is_retry:
            self._spark_session = self._engine = None
            _wait_until_open(opened)
        return opened

    def _with_fields(self, settings: SparkSettings) -> SparkSettings:
        fields: dict[str, Any] = {"remote": self.remote, "master": self.master}
        given = {name: value for name, value in fields.items() if value is not None}
        if self.master is not None and self.remote is None:
            given["remote"] = None
        conf = {name: str(value) for name, value in self.spark_config.items()}
        return replace(settings, **given, conf={**settings.conf, **conf})

    def _open_engine(self) -> "SparkEngine":
        if self._engine is None:
            self._engine = open_engine(self._current_settings())
        return self._engine

    def _init_session(self) -> None:
        if self._spark_session is None:
            self._spark_session = open_session(self._current_settings())

    def _current_settings(self) -> SparkSettings:
        return self._settings or self._with_fields(Pipeline.from_environment().spark)


def _wait_until_open(open_it: "Callable[[], SparkEngine]") -> None:
    """Try for at most two minutes to open an engine; after that, its use raises the error."""
    deadline = time.monotonic() + _MAX_SPARK_OUTAGE_SECONDS
    while time.monotonic() < deadline:
        with suppress(SparkUnavailableError):
            open_it()
            return
        time.sleep(_PAUSE_SECONDS)


def engine_factory(
    stream: Stream, resource: Any, settings: SparkSettings, *, is_retry: bool
) -> "Callable[[], SparkEngine]":
    """Return a function that returns the Spark engine of a resource for a stream.

    The resource is a `SparkResource`, or one of the project's own with a `spark_session`, which
    `dagster.spark_resource` of the stream file names.
    """
    if isinstance(resource, SparkResource):
        return resource.engine_of(stream, settings, is_retry=is_retry)
    return lambda: resource.spark_session
