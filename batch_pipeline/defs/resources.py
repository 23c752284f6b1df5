"""Resources of runs and sensors: the pipeline, the Spark session, and the S3 client of landings."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from batch_pipeline.app import Pipeline
from batch_pipeline.model.errors import SparkUnavailableError
from batch_pipeline.model.stream import Stream
from batch_pipeline.spark.sessions.session import SparkSettings, open_session
from batch_pipeline.storage.filesystem import filesystem_of
from batch_pipeline.storage.s3 import S3FileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_SPARK_OUTAGE_SECONDS = 120
_PAUSE_SECONDS = 1


def lands_in_s3(stream: Stream) -> bool:
    """Return whether the landing of a stream is listed with the S3 resource."""
    return isinstance(filesystem_of(stream.source.place), S3FileSystem)


class PipelineResource(dg.ConfigurableResource[Any]):
    """The inventory, landings and storages named by the process's environment."""

    _pipeline: Pipeline | None = PrivateAttr(default=None)

    @property
    def pipeline(self) -> Pipeline:
        """The open pipeline; opened on first use."""
        if self._pipeline is None:
            self._pipeline = Pipeline.from_environment()
        return self._pipeline

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close the connections of the run."""
        if self._pipeline is not None:
            self._pipeline.close()


class SparkResource(LazyPySparkResource):
    """The Spark session of the process: Spark Connect when an address is set, else a local one.

    The session outlives the run, so that runs of one process share it.
    """

    spark_config: dict[str, Any] = Field(default_factory=dict)

    _settings: SparkSettings | None = PrivateAttr(default=None)

    def session_of(
        self, stream: Stream, settings: SparkSettings, *, is_retry: bool
    ) -> "Callable[[], SparkSession]":
        """Return a function that returns the session for a stream, and opens it on first use.

        A retry opens a working session at once, and tries to for at most two minutes.
        """
        self._settings = settings if stream.transform is None else settings.unshared()
        if is_retry:
            self._renew()
        return lambda: self.spark_session

    def _renew(self) -> None:
        self._spark_session = None
        deadline = time.monotonic() + _MAX_SPARK_OUTAGE_SECONDS
        while self._spark_session is None and time.monotonic() < deadline:
            with suppress(SparkUnavailableError):  # the next use raises it
                self._init_session()
                return
            time.sleep(_PAUSE_SECONDS)

    def _init_session(self) -> None:
        if self._spark_session is None:
            self._spark_session = open_session(self._settings or Pipeline.from_environment().spark)
