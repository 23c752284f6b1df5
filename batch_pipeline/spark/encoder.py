"""The encoder on Spark: plans the tasks of a batch, runs them and combines their reports."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from batch_pipeline.model.encode import EncodeRequest, EncodeResult
from batch_pipeline.spark.spark_job import SparkJobRunner
from batch_pipeline.spark.task_planning import plan_tasks, split_files
from batch_pipeline.spark.tasks import TaskRunner, combine_reports
from batch_pipeline.spark.transform import encode_transformed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MIN_SAMPLE_RECORDS = 1_000  # per task, so that rare columns and values are seen


class SparkEncoder:
    """An encoder on the session that the factory returns.

    Tasks read, validate and write files in Spark's Python workers. Records enter the JVM only if
    the stream has a transform.
    """

    def __init__(self, session_factory: "Callable[[], SparkSession]") -> None:
        self._session_factory = session_factory

    def prepare(self) -> None:
        """Open the session, so that no attempt starts when there is none.

        Raises:
            ConfigurationError, SparkUnavailableError: the session cannot be opened.
        """
        self._session_factory()

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Encode the items; bad records and files are reported, never raised.

        No part file is left if there are misfits, a bad file that the stream file does not allow,
        or too many bad records.

        Raises:
            ConflictError: the encode was cancelled.
            SourceUnavailableError: an object cannot be read now.
            StorageUnavailableError: part files cannot be written.
            SparkUnavailableError: the engine is gone.
            InvariantError: a task failed unexpectedly.
            TransformError: the stream's transform failed.
            ConfigurationError: the transform does not exist.
        """
        # Targets name databases and credentials; no task needs them.
        stream = replace(request.stream, targets=())
        request = replace(request, stream=stream)
        jobs = SparkJobRunner(self._session_factory, stream.storage, request.stem, request.watch)
        split = split_files(request.items, stream, jobs)
        inputs = list(plan_tasks(request.items, split))
        if request.sample_records is not None and inputs:
            most = max(MIN_SAMPLE_RECORDS, request.sample_records // len(inputs))
            rules = replace(stream.schema, sample_records=most)
            request = replace(request, stream=replace(stream, schema=rules))
        if stream.transform is not None:
            return encode_transformed(jobs, request, inputs)
        return combine_reports(TaskRunner(jobs, request).run(inputs), request)
