"""Encodes items on Spark: cuts them into tasks, runs these, adds up their reports."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from batch_pipeline.domain.encode import EncodeRequest, EncodeResult
from batch_pipeline.spark.packing import packed
from batch_pipeline.spark.results import result_of
from batch_pipeline.spark.running import SparkJobs
from batch_pipeline.spark.splitting import splits
from batch_pipeline.spark.tasks import Tasks
from batch_pipeline.spark.transform import encode_transformed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkEncoder:
    """Encodes on the session that the factory gives.

    Records enter the JVM only where the stream has a transform.
    """

    def __init__(self, session_factory: "Callable[[], SparkSession]") -> None:
        self._session_factory = session_factory

    def prepare(self) -> None:
        """Open the session, so that no attempt is begun in vain.

        Raises:
            ConfigurationError, SparkUnavailableError: there is none.
        """
        self._session_factory()

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Encode the items; bad records and files are reported, never raised.

        No part file is left when there are misfits, a bad file that must not be, or too many bad
        records.

        Raises:
            EncodeStoppedError: the request's watch called it off.
            SourceUnavailableError: an object cannot be read now.
            StorageUnavailableError: part files cannot be written.
            SparkUnavailableError: the engine is gone.
            TaskFailedError: a task ended in an unexpected way.
            TransformError: the stream's transform failed.
            TransformUnusableError: it is not there.
        """
        stream = replace(request.stream, targets=())  # no task needs to know who loads the files
        request = replace(request, stream=stream)
        jobs = SparkJobs(self._session_factory, stream.storage, request.stem, request.watch)
        parts = splits(request.items, stream, jobs)
        works = list(packed(request.items, parts))
        if stream.transform is not None:
            return encode_transformed(jobs, request, works)
        return result_of(Tasks(jobs, request).run(works), request)
