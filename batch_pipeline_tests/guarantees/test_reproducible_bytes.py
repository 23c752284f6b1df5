"""The same files are encoded into the same bytes, on any number of cores and in any order (G7)."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from batch_pipeline.encode.task import TaskReport, TaskSpec, encode_items
from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Stream
from batch_pipeline.spark.task_planning import TaskInput, plan_tasks
from batch_pipeline_tests.encode.task_fixture import TaskFixture
from batch_pipeline_tests.factories import CONTEXT
from batch_pipeline_tests.guarantees.encode_again import ENCODINGS, TYPES, content, facts_of
from batch_pipeline_tests.proofs import Figures

PROJECT = Path(__file__).parents[2]
Part = tuple[int, int, str]  # the result of `facts_of`
Runs = Callable[[Sequence[Callable[[], TaskReport]]], Iterable[TaskReport]]


def at_once(tasks: Sequence[Callable[[], TaskReport]]) -> list[TaskReport]:
    """Run all tasks side by side."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(lambda task: task(), tasks))


WAYS: tuple[Runs, ...] = (
    lambda tasks: [task() for task in tasks],
    lambda tasks: [task() for task in reversed(tasks)],
    at_once,
)


def encoded(stream: Stream, works: Sequence[TaskInput], way: Runs) -> list[Part]:
    """Run the tasks in some order and give all part files in the order of the records."""
    specs = [
        TaskSpec(
            number=number,
            stem="orders-1",
            stream=stream,
            schema=RecordSchema.from_json(list(TYPES.items())),
            items=work.items,
            context=CONTEXT,
        )
        for number, work in enumerate(works)
    ]
    tasks = [partial(encode_items, spec, execution=f"{WAYS.index(way):08x}") for spec in specs]
    reports = sorted(way(tasks), key=lambda report: report.number)
    assert not any(report.misfits for report in reports)
    return [one for report in reports for one in facts_of(report.part_files)]


def on_spark(folder: Path, cores: int, files: int) -> list[list[list[Part]]]:
    """Encode in a session of so many cores, each encoding twice; give the part files of each."""
    folder.mkdir()
    module = "batch_pipeline_tests.guarantees.encode_again"
    command = [sys.executable, "-m", module, str(folder), str(cores), str(files)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    runs: list[list[list[Part]]] = json.loads(done.stdout.splitlines()[-1])
    return [[[(*part,) for part in run] for run in twice] for twice in runs]


@pytest.mark.guarantee("G7")
def test_same_files_give_the_same_bytes_in_any_order_and_on_any_number_of_cores(
    tmp_path: Path, figures: Figures, *, long_form: bool
) -> None:
    """Tasks run in order, reversed and in parallel; the long form adds Spark on 1 to 4 cores."""
    files = 2_000 if long_form else 260  # more than one task
    task = TaskFixture(tmp_path)
    for number in range(files):
        task.land(content(number))
    works = list(plan_tasks(task.items, {}))
    assert len(works) > 1
    runs: dict[Encoding, list[list[Part]]] = {encoding: [] for encoding in ENCODINGS}
    for encoding, found in runs.items():
        stream = replace(task.stream, encoding=encoding)
        found.extend(encoded(stream, works, way) for way in WAYS)
    for cores in (1, 2, 4) if long_form else ():
        for found, twice in zip(
            runs.values(), on_spark(tmp_path / str(cores), cores, files), strict=True
        ):
            found.extend(twice)
    for found in runs.values():
        assert found[0]
        assert found == [found[0]] * len(found)
    figures(
        times_encoded=sum(map(len, runs.values())),
        part_files_compared=sum(len(found[0]) * len(found) for found in runs.values()),
        different=0,
    )
