"""Runs the tasks of one encode, once more in one piece where a part of a file is of no use."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from batch_pipeline.domain.encode import EncodeRequest
from batch_pipeline.spark.packing import Work
from batch_pipeline.spark.results import check_finished, remove_files
from batch_pipeline.spark.running import SparkJobs, task_frame
from batch_pipeline.spark.task import run_tasks
from batch_pipeline.spark.task_values import TaskReport, TaskSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)


class Tasks:
    """The tasks of one encode, and all that they report.

    With `checks_only` they write nothing but bad records. `specs` are those of the reports that
    were given, in their order.
    """

    def __init__(
        self, jobs: SparkJobs, request: EncodeRequest, *, checks_only: bool = False
    ) -> None:
        self.specs: list[TaskSpec] = []
        self._jobs = jobs
        self._request = request
        self._checks_only = checks_only
        self._reports: list[TaskReport] = []

    def run(self, works: Sequence[Work]) -> list[TaskReport]:
        """Give the reports in the order of the work.

        A file of which one part cannot be used is read once more in one piece: that alone tells
        what is wrong with it, or that it is only written in an unusual way. What was made of its
        other parts is removed.

        After an exception no file is left that a task has told of.

        Raises:
            EncodeStoppedError: the request's watch called it off.
            SparkUnavailableError: the engine is gone.
            SourceUnavailableError: an object cannot be read now.
            StorageUnavailableError: part files cannot be written.
            TaskFailedError: a task ended in an unexpected way.
        """
        try:
            return self._run(dict(enumerate(works)))
        except BaseException:
            remove_files(self._reports)
            raise

    def _run(self, numbered: dict[int, Work]) -> list[TaskReport]:
        reports = self._reported(numbered)
        unfit = {
            work.items[0].id
            for number, work in numbered.items()
            if work.part is not None and _is_unfit(reports[number])
        }
        whole = {item.id: item for item in self._request.items if item.id in unfit}
        again: dict[int, Work] = {}
        for number, work in numbered.items():
            item_id = work.items[0].id
            if work.part is None or item_id not in unfit:
                continue
            remove_files([reports.pop(number)])
            if item_id in whole:  # takes the place of the first part
                again[number] = Work(items=(whole.pop(item_id),))
        if again:
            reports |= self._reported(again)
        final = numbered | again
        self.specs = [self._spec(number, final[number]) for number in sorted(reports)]
        return [reports[number] for number in sorted(reports)]

    def _reported(self, numbered: Mapping[int, Work]) -> dict[int, TaskReport]:
        # The heaviest first, so that no core is left alone with one at the end.
        order = sorted(numbered, key=lambda number: -numbered[number].weight)
        payloads = [msgspec.json.encode(self._spec(number, numbered[number])) for number in order]
        if payloads:
            self._jobs.run(lambda session: self._collect(session, payloads), tasks=len(payloads))
            peak = max(report.peak_bytes for report in self._reports) >> 20
            log.info("%d tasks done, %d MiB at most in a worker", len(payloads), peak)
        found = {report.number: report for report in self._reports if report.number in numbered}
        check_finished(found.values(), self._request.stream)
        return found

    def _spec(self, number: int, work: Work) -> TaskSpec:
        return TaskSpec(
            number=number,
            stem=self._request.stem,
            stream=self._request.stream,
            schema=self._request.schema,
            items=work.items,
            context=self._request.context,
            part=work.part,
            csv_slice=work.csv_slice,
            stop_mark=self._jobs.stop_mark,
            checks_only=self._checks_only,
        )

    def _collect(self, session: "SparkSession", payloads: list[bytes]) -> None:
        rows = task_frame(session, payloads, run_tasks, "number int, report binary").collect()
        # Kept here and not given: an interrupt that ends the wait must not lose sight of the files.
        self._reports += [msgspec.json.decode(row["report"], type=TaskReport) for row in rows]


def _is_unfit(report: TaskReport) -> bool:
    """Tell that a part of a file could not be used."""
    return report.refused is not None or any(item.bad_file is not None for item in report.items)
