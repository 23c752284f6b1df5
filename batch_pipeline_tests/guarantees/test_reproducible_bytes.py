"""Encoding the same files yields the same bytes, on any number of cores and in any order (G7)."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from batch_pipeline.encode.task import TaskReport, encode_items
from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.stream import Stream
from batch_pipeline.spark.task_planning import TaskInput, plan_tasks
from batch_pipeline_tests.acceptance.sandbox import program_output
from batch_pipeline_tests.encode.task_fixture import TaskFixture, task_spec
from batch_pipeline_tests.guarantees.encode_again import ENCODINGS, TYPES, content, facts_of
from batch_pipeline_tests.proofs import Figures

PROJECT = Path(__file__).parents[2]
Part = tuple[int, int, str]  # the result of `facts_of`
Runner = Callable[[Sequence[Callable[[], TaskReport]]], Iterable[TaskReport]]


def run_concurrently(tasks: Sequence[Callable[[], TaskReport]]) -> list[TaskReport]:
    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(lambda task: task(), tasks))


RUNNERS: tuple[Runner, ...] = (
    lambda tasks: [task() for task in tasks],
    lambda tasks: [task() for task in reversed(tasks)],
    run_concurrently,
)


def encoded(stream: Stream, inputs: Sequence[TaskInput], run_tasks: Runner) -> list[Part]:
    """Run the tasks in some order, and return all part files in the order of the records."""
    specs = [
        task_spec(stream, task_input.items, TYPES, number=number)
        for number, task_input in enumerate(inputs)
    ]
    execution = f"{RUNNERS.index(run_tasks):08x}"
    tasks = [partial(encode_items, spec, execution=execution) for spec in specs]
    reports = sorted(run_tasks(tasks), key=lambda report: report.number)
    assert not any(report.misfits for report in reports)
    return [part for report in reports for part in facts_of(report.part_files)]


def encoded_on_spark(folder: Path, cores: int, files: int) -> list[list[list[Part]]]:
    """Encode twice in each encoding with some number of cores, and return the part files."""
    folder.mkdir()
    module = "batch_pipeline_tests.guarantees.encode_again"
    words = (sys.executable, "-m", module, str(folder), str(cores), str(files))
    output = program_output(*words, cwd=PROJECT, timeout=None)
    runs: list[list[list[Part]]] = json.loads(output.splitlines()[-1])
    return [[[(*part,) for part in run] for run in twice] for twice in runs]


@pytest.mark.guarantee("G7")
def test_encoding_is_reproducible_in_any_order_and_on_any_core_count(
    tmp_path: Path, figures: Figures, *, long_form: bool
) -> None:
    """Tasks run in order, reversed and in parallel.

    The long form has more encodings, and adds Spark on 1 to 4 cores.
    """
    files = 2_000 if long_form else 260  # more than one task
    task = TaskFixture(tmp_path)
    for number in range(files):
        task.land(content(number))
    inputs = list(plan_tasks(task.items, {}))
    assert len(inputs) > 1
    encodings = ENCODINGS if long_form else ENCODINGS[::2]  # one of jsonl, parquet and orc
    runs: dict[Encoding, list[list[Part]]] = {encoding: [] for encoding in encodings}
    for encoding, results in runs.items():
        stream = replace(task.stream, encoding=encoding)
        results.extend(encoded(stream, inputs, run_tasks) for run_tasks in RUNNERS)
    for cores in (1, 2, 4) if long_form else ():
        for results, twice in zip(
            runs.values(), encoded_on_spark(tmp_path / str(cores), cores, files), strict=True
        ):
            results.extend(twice)
    for results in runs.values():
        assert results[0]
        assert results == [results[0]] * len(results)
    figures(
        times_encoded=sum(map(len, runs.values())),
        part_files_compared=sum(len(results[0]) * len(results) for results in runs.values()),
        different=0,
    )
