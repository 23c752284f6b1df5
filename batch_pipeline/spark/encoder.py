"""Encodes items on Spark: packs them into tasks, runs these, adds up their reports."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import pyarrow as pa

from batch_pipeline.domain.errors import (
    SparkUnavailableError,
    StorageUnavailableError,
    TaskFailedError,
)
from batch_pipeline.domain.item import Item
from batch_pipeline.domain.schema import Column, RecordSchema
from batch_pipeline.domain.stream import OnBadFile, SourceFormat, Stream
from batch_pipeline.ports import EncodeRequest, EncodeResult
from batch_pipeline.spark.check.profile import narrowed
from batch_pipeline.spark.task import TaskReport, TaskSpec, run_tasks, without_files
from batch_pipeline.spark.write.part_writer import remove

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Fixed, whatever the number of cores: the same items give the same part files on every machine.
TASK_WEIGHT = 16 * 2**20
TASK_ITEMS = 200


class SparkEncoder:
    """Encodes on the session that the factory gives; records never enter the JVM."""

    def __init__(self, session_factory: "Callable[[], SparkSession]") -> None:
        self._session_factory = session_factory

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Encode the items; bad records and files are reported, never raised.

        No part file is left when there are misfits, a bad file that must not be, or too many bad
        records.

        Raises:
            StorageUnavailableError: part files cannot be written.
            SparkUnavailableError: the engine is gone.
            TaskFailedError: a task ended in an unexpected way.
        """
        specs = [
            TaskSpec(
                number=number,
                stem=request.stem,
                stream=request.stream,
                schema=request.schema,
                items=items,
            )
            for number, items in enumerate(packed(request.items))
        ]
        reports = self._reports(specs) if specs else []
        try:
            _check_finished(reports, request.stream)
        except Exception:
            _remove_files(reports)
            raise
        return _result(reports, request)

    def _reports(self, specs: Sequence[TaskSpec]) -> list[TaskReport]:
        session = self._session_factory()
        tag = f"encode-{uuid4().hex}"
        # On a thread of its own, and so on its own connection to the JVM: an interrupt that breaks
        # off the wait leaves no answer behind that the next call would take for its own.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix=tag) as executor:
            encoding = executor.submit(_run_tasks, session, specs, tag)
            try:
                return encoding.result()
            except _engine_errors() as error:
                raise SparkUnavailableError(_target(session), _reason(error)) from error
            except BaseException as error:
                if not isinstance(error, Exception):  # an interrupt; Dagster has its own class
                    with suppress(*_engine_errors()):
                        session.interruptTag(tag)  # else the tasks would write on
                raise


def _run_tasks(session: "SparkSession", specs: Sequence[TaskSpec], tag: str) -> list[TaskReport]:
    rows = pa.table(
        {
            "number": pa.array([spec.number for spec in specs], pa.int32()),
            "spec": [msgspec.json.encode(spec) for spec in specs],
        }
    )
    session.addTag(tag)  # counts for this thread, which ends with the encode
    frame = session.createDataFrame(rows)
    found = (
        frame.repartitionById(len(specs), "number")
        .mapInArrow(run_tasks, "number int, report binary")
        .collect()
    )
    reports = [msgspec.json.decode(row["report"], type=TaskReport) for row in found]
    return sorted(reports, key=lambda report: report.number)


def packed(items: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    """Cut items, in their order, into tasks of at most 16 MiB and 200 items.

    An item heavier than that is a task of its own.
    """
    task: list[Item] = []
    weight = 0
    for item in items:
        if task and (weight + item.weight > TASK_WEIGHT or len(task) == TASK_ITEMS):
            yield tuple(task)
            task, weight = [], 0
        task.append(item)
        weight += item.weight
    if task:
        yield tuple(task)


def _check_finished(reports: Sequence[TaskReport], stream: Stream) -> None:
    for report in reports:
        if report.storage_error is not None:
            raise StorageUnavailableError(stream.storage.root, report.storage_error)
        if report.failure is not None:
            raise TaskFailedError(stream.name, report.number, report.failure)


def _result(reports: Sequence[TaskReport], request: EncodeRequest) -> EncodeResult:
    text_source = not any(SourceFormat.JSONL in report.formats for report in reports)
    misfits = _misfits(reports, request.schema, text_source=text_source)
    items = tuple(item for report in reports for item in report.items)
    if misfits or _is_refused(reports, request.stream):
        _remove_files(reports)
        reports = [replace(report, part_files=(), quarantine_files=()) for report in reports]
        items = tuple(without_files(item) for item in items)
    return EncodeResult(
        part_files=tuple(part for report in reports for part in report.part_files),
        quarantine_files=tuple(part for report in reports for part in report.quarantine_files),
        items=items,
        misfits=misfits,
        bad_records=tuple(bad for report in reports for bad in report.bad_records),
        text_source=text_source,
    )


def _misfits(
    reports: Sequence[TaskReport], schema: RecordSchema, *, text_source: bool
) -> tuple[Column, ...]:
    """Merge what the tasks could not fit, in the order of the tasks."""
    wide = {name for report in reports for name in report.wide}
    merged = schema
    for report in reports:
        merged = merged.widened(report.misfits, text_source=text_source)
    before = schema.types()
    needed = (
        Column(
            name=column.name,
            type=narrowed(column.type, wide=column.name in wide, text_source=text_source),
        )
        for column in merged.columns
    )
    return tuple(column for column in needed if before.get(column.name) is not column.type)


def _is_refused(reports: Sequence[TaskReport], stream: Stream) -> bool:
    """Tell whether the stream file forbids to publish this."""
    items = [item for report in reports for item in report.items]
    if sum(item.quarantined for item in items) > stream.max_bad_records:
        return True
    bad_file = any(item.bad_file is not None for item in items)
    return bad_file and stream.on_bad_file is OnBadFile.FAIL


def _remove_files(reports: Iterable[TaskReport]) -> None:
    for report in reports:
        for part in (*report.part_files, *report.quarantine_files):
            remove(part)


def _target(session: "SparkSession") -> str:
    """Name the engine; the address of a server is left out, for it holds a token."""
    return "the Connect server" if _is_connect(session) else str(session.sparkContext.master)


def _is_connect(session: "SparkSession") -> bool:
    return ".connect." in type(session).__module__


def _engine_errors() -> tuple[type[Exception], ...]:
    """Give what pyspark raises when its engine fails or is gone."""
    from pyspark.errors import PySparkException

    gateway_error: type[Exception] = import_module("py4j.protocol").Py4JError
    return PySparkException, gateway_error, OSError, AttributeError  # the last: it was stopped


def _reason(error: Exception) -> str:
    """Find the one line of an engine's report, stack traces included, that says what happened."""
    text = str(error).strip()
    raised = re.findall(r"^[: ]*((?:\w+\.)*\w*(?:Error|Exception): .+?)\.?$", text, re.MULTILINE)
    return raised[-1] if raised else text.partition("\n")[0] or type(error).__name__
