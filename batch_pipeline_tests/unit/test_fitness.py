"""What is told of executors that cannot run tasks."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark import SparkFiles, cloudpickle

from batch_pipeline.domain.errors import TasksLostError
from batch_pipeline.spark.clusters.archive_note import ArchiveNote
from batch_pipeline.spark.clusters.fitness import (
    is_lost,
    lacked,
    lost,
    problem_of,
    unfit_executor,
)
from batch_pipeline.spark.clusters.probe import Seen, probe

HERE = ArchiveNote(
    python="3.11", platform="linux-x86_64", release="1", package="abc", distributions={}
)
LOST = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed "
    "4 times, most recent failure: Lost task 0.3 in stage 3.0 (TID 7) (10.0.0.7 executor 2): {}"
)


def seen(**facts: Any) -> Seen:
    """What a task found on an executor that has everything."""
    usual: dict[str, Any] = {
        "task": 1,
        "host": "h",
        "python": "3.11.7",
        "platform": "linux-x86_64",
        "missing": (),
        "broken": None,
        "package": "abc",
        "note": None,
    }
    return Seen(**(usual | facts))


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("ModuleNotFoundError: No module named 'pyarrow.lib'\n", "lacks modules: pyarrow.lib"),
        ('Cannot run program "python3.11": error=2, No such file', "it has no python3.11"),
        (
            "Python in worker has different version: 3.12 than that in driver: 3.11, PySpark",
            "it has Python 3.12, and this is Python 3.11",
        ),
    ],
    ids=["module", "program", "version"],
)
def test_report_of_a_lost_task_names_executor_and_lack(reason: str, told: str) -> None:
    """Host and id are those of Spark's own pages."""
    found = unfit_executor("yarn", LOST.format(reason))
    assert found is not None
    assert (found.executor, found.host, found.target) == ("2", "10.0.0.7", "yarn")
    assert told in str(found)
    assert str(found).startswith("Executor 2 on 10.0.0.7, of Spark at yarn, cannot run tasks: ")
    assert str(found).endswith(", then run again.")


@pytest.mark.parametrize(
    "report",
    [
        LOST.format("ExecutorLostFailure (executor 2 exited: worker lost)"),
        LOST.format("ModuleNotFoundError: No module named 'x'\n").replace(
            "executor 2", "executor driver"
        ),
        "ModuleNotFoundError: No module named 'x'",
        "",
    ],
    ids=["lost", "in the driver", "no place", "nothing"],
)
def test_report_of_another_failure_blames_no_executor(report: str) -> None:
    """A worker that is gone, or what the driver itself lacks, is not for packing to mend."""
    assert unfit_executor("yarn", report) is None


BY_TASKS = "ExecutorLostFailure (executor 2 exited caused by one of the running tasks) Reason: 137"
BY_OTHERS = "ExecutorLostFailure (executor 2 exited unrelated to the running tasks) Reason: gone"


@pytest.mark.parametrize(
    ("report", "is_theirs"),
    [
        (LOST.format(BY_TASKS), True),
        (LOST.format("SparkException: Python worker exited unexpectedly (crashed)"), True),
        (LOST.format(BY_OTHERS), False),
        ("Job 3 cancelled because SparkContext was shut down", False),
        ("Job aborted due to stage failure: Master removed our application: FAILED", False),
    ],
    ids=["executor", "worker", "taken away", "shut down", "removed"],
)
def test_processes_that_ended_under_tasks_are_told_from_an_outage(
    report: str, is_theirs: bool
) -> None:
    """Expect Spark's own judgement of who is to blame."""
    error = lost("yarn", report, "the reason")
    assert isinstance(error, TasksLostError) is is_theirs
    assert (error.target, error.reason) == ("yarn", "the reason")


CALLED = "An error occurred while calling o144.collect.\n: org.apache.spark.SparkException: "
SHUFFLED = (
    "ResultStage 5 has failed the maximum allowable number of times: 4. Most recent failure reason:"
    "\norg.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location"
)
IN_WORKER = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"


@pytest.mark.parametrize(
    "report",
    [
        LOST.format(BY_TASKS),
        LOST.format(BY_OTHERS),
        f"{CALLED}Job 4 cancelled because SparkContext was shut down\n\tat org.apache.spark",
        f"{CALLED}Job aborted due to stage failure: Master removed our application: KILLED\n\tat o",
        "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis",
        SHUFFLED,
    ],
    ids=["died", "taken away", "shut down", "removed", "stopped", "shuffled records"],
)
def test_report_of_lost_processes_is_not_of_what_they_ran(report: str) -> None:
    """Expect no function and no data to be blamed for what an engine lost."""
    assert is_lost(report)


@pytest.mark.parametrize(
    "report",
    [
        f'{IN_WORKER}  File "t.py", line 7, in add\nZeroDivisionError: division by zero',
        f"{CALLED}Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times",
        "[CAST_INVALID_INPUT] The value 'x0' of the type STRING cannot be cast to INT",
    ],
    ids=["python", "task", "cast"],
)
def test_report_of_what_was_run_is_not_of_lost_processes(report: str) -> None:
    """Expect faults of a function to stay its own."""
    assert not is_lost(report)


def test_module_that_the_driver_lacks_too_is_nobodys_to_pack() -> None:
    """Expect only what is here to be missed there, by the words of Python and of pickle."""
    worker = IN_WORKER + "ModuleNotFoundError: No module named '{}'"
    assert lacked(worker.format("batch_pipeline_tests.factories")) == [
        "batch_pipeline_tests.factories"
    ]
    assert lacked(worker.format("no_such_module")) == []
    assert lacked(worker.format("no_such_package.module")) == []


def test_module_of_a_user_is_packed_by_its_name() -> None:
    """Expect the whole package of it to be named, for `pack` to bring it along."""
    report = LOST.format("ModuleNotFoundError: No module named 'batch_pipeline_tests.factories'")
    told = str(unfit_executor("yarn", report))
    assert "lacks modules: batch_pipeline_tests.factories." in told
    assert "`batch-pipeline pack packed.tar.gz --with batch_pipeline_tests`" in told
    assert "or install batch_pipeline_tests for the Python of the executors" in told


def test_executor_that_has_everything_is_fit() -> None:
    """The same sources count, wherever they lie."""
    assert problem_of(seen(), HERE) is None


@pytest.mark.parametrize(
    ("facts", "problem", "step"),
    [
        ({"missing": ("isal",)}, "its Python 3.11.7 lacks modules: isal", "pack packed.tar.gz"),
        ({"missing": ("a", "b")}, "lacks modules: a, b", "BATCH_PIPELINE_SPARK_PACKED"),
        ({"broken": "bad ELF"}, "cannot import what tasks need (bad ELF)", "install"),
        ({"package": "xyz"}, "another release of batch-pipeline", "pack packed.tar.gz"),
        (
            {
                "missing": ("pyarrow",),
                "platform": "linux-aarch64",
                "note": {"python": "3.11", "platform": "linux-x86_64"},
            },
            "is for Python 3.11 on linux-x86_64, and it has Python 3.11 on linux-aarch64",
            "on a machine like it",
        ),
    ],
    ids=["one", "several", "broken", "release", "platform"],
)
def test_executor_that_is_unfit_is_told_with_what_mends_it(
    facts: dict[str, Any], problem: str, step: str
) -> None:
    """What is wrong with an archive explains all that is missing."""
    found = problem_of(seen(**facts), HERE)
    assert found is not None
    assert problem in found[0]
    assert step in found[1]


def test_probe_finds_here_what_tasks_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It travels as code, and looks as it would in a worker."""
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    look = cloudpickle.loads(cloudpickle.dumps(probe()))  # type: ignore[no-untyped-call]
    found = msgspec.json.decode(look(0), type=Seen)
    assert (found.missing, found.broken, found.note) == ((), None, None)
    assert found.package == ArchiveNote.of_here({}).package
    assert found.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
