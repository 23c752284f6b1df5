"""Diagnosis of executors that cannot run tasks, from Spark's reports and from probes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark import SparkFiles, cloudpickle

from batch_pipeline.model.errors import TasksLostError
from batch_pipeline.spark.diagnostics import (
    ExecutorReport,
    diagnose_executor,
    find_problem,
    is_process_loss,
    make_probe,
    missing_modules,
    process_loss_error,
)
from batch_pipeline.spark.executor_archive import package_digest

LOST = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed "
    "4 times, most recent failure: Lost task 0.3 in stage 3.0 (TID 7) (10.0.0.7 executor 2): {}"
)

WITHOUT_THE_PACKAGE = """\
import pickle, sys
from pyspark import SparkFiles
sys.modules["batch_pipeline"] = None
SparkFiles._is_running_on_worker = True
SparkFiles._root_directory = sys.argv[1]
print(pickle.load(sys.stdin.buffer)(0))
"""


CAUSES = {
    "module": (
        "ModuleNotFoundError: No module named 'pyarrow.lib'\n",
        (
            "lacks modules: pyarrow.lib. Nothing was published. Run `batch-pipeline pack "
            "packed.tar.gz` and set BATCH_PIPELINE_SPARK_PACKED=packed.tar.gz, or install this "
            "release for the Python of the executors, then run again."
        ),
    ),
    "module of the user": (
        "ModuleNotFoundError: No module named 'batch_pipeline_tests.factories'",
        (
            "lacks modules: batch_pipeline_tests.factories. Nothing was published. Run "
            "`batch-pipeline pack packed.tar.gz --with batch_pipeline_tests` and set "
            "BATCH_PIPELINE_SPARK_PACKED=packed.tar.gz, or install batch_pipeline_tests for the "
            "Python of the executors, then run again."
        ),
    ),
    "program": (
        'Cannot run program "python3.11": error=2, No such file',
        "it has no python3.11. Nothing was published. Set PYSPARK_PYTHON to a Python 3.",
    ),
    "version": (
        "Python in worker has different version: 3.12 than that in driver: 3.11, PySpark",
        "it has Python 3.12, and the driver has Python 3.11",
    ),
}


@pytest.mark.parametrize(("reason", "cause"), CAUSES.values(), ids=CAUSES)
def test_diagnose_executor_names_host_and_cause_of_lost_task(reason: str, cause: str) -> None:
    error = diagnose_executor("yarn", LOST.format(reason))
    assert error is not None
    assert cause in str(error)
    assert str(error).startswith("The executor on 10.0.0.7, of Spark at yarn, cannot run tasks: ")
    assert str(error).endswith(", then run again.")


@pytest.mark.parametrize(
    "report",
    [
        LOST.format("ExecutorLostFailure (executor 2 exited: worker lost)"),
        LOST.format("ModuleNotFoundError: No module named 'pyarrow.x'\n"),
        LOST.format("ModuleNotFoundError: No module named 'pyarrow'\n").replace(
            "executor 2", "executor driver"
        ),
        "ModuleNotFoundError: No module named 'x'",
        "",
    ],
    ids=["lost", "nowhere", "in the driver", "no place", "nothing"],
)
def test_diagnose_executor_of_other_failure_is_none(report: str) -> None:
    """An archive does not fix a lost worker or a module that the driver lacks too."""
    assert diagnose_executor("yarn", report) is None


EXITED_BY_TASKS = (
    "ExecutorLostFailure (executor 2 exited caused by one of the running tasks) Reason: 137"
)
EXITED_UNRELATED = (
    "ExecutorLostFailure (executor 2 exited unrelated to the running tasks) Reason: gone"
)
CALLED = "An error occurred while calling o144.collect.\n: org.apache.spark.SparkException: "
IN_WORKER = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
# A report, whether it is of a lost process, and whether the tasks may have caused the loss.
REPORTS = {
    "executor": (LOST.format(EXITED_BY_TASKS), True, True),
    "worker": (LOST.format("SparkException: Python worker exited unexpectedly (1)"), True, True),
    "taken away": (LOST.format(EXITED_UNRELATED), True, False),
    "shut down": (f"{CALLED}Job 4 cancelled because SparkContext was shut down\n", True, False),
    "removed": (f"{CALLED}Master removed our application: KILLED\n\t", True, False),
    "stopped": ("Cannot call methods on a stopped SparkContext.\nThis", True, False),
    "restarted server": ("[INVALID_HANDLE.SESSION_CHANGED] The handle 1 is invalid.", True, False),
    "restarted while results came": (
        "[RESPONSE_ALREADY_RECEIVED] INVALID_HANDLE.OPERATION_NOT_FOUND on the server but",
        True,
        False,
    ),
    "shuffled records": (
        "Most recent failure:\norg.apache.spark.shuffle.MetadataFetchFailedException: Missing",
        True,
        False,
    ),
    "python": (f'{IN_WORKER}  File "t.py", line 7, in add\nZeroDivisionError: 0', False, False),
    "task": (f"{CALLED}Job aborted due to stage failure: Task 0 failed 4 times", False, False),
    "cast": ("[CAST_INVALID_INPUT] The value 'x0' of the type STRING cannot be", False, False),
}


@pytest.mark.parametrize(("report", "is_loss", "is_in_tasks"), REPORTS.values(), ids=REPORTS)
def test_process_loss_is_distinguished_from_failures_of_tasks(
    report: str, is_loss: bool, is_in_tasks: bool
) -> None:
    """A lost process does not count as a failure of a user's function or data."""
    assert is_process_loss(report) is is_loss
    error = process_loss_error("yarn", report, "the reason")
    assert isinstance(error, TasksLostError) is is_in_tasks
    assert (error.target, error.reason) == ("yarn", "the reason")


def test_missing_modules_omits_modules_that_the_driver_lacks() -> None:
    """A module that is missing everywhere is a mistake in the code."""
    worker = IN_WORKER + "ModuleNotFoundError: No module named '{}'"
    assert missing_modules(worker.format("batch_pipeline_tests.factories")) == [
        "batch_pipeline_tests.factories"
    ]
    assert missing_modules(worker.format("no_such_module")) == []
    assert missing_modules(worker.format("no_such_package.module")) == []


@pytest.mark.parametrize(
    ("facts", "problem", "step"),
    [
        (
            {"missing_modules": ("isal", "b.c")},
            "its Python 3.11.7 lacks modules: isal, b.c",
            "pack packed.tar.gz --with b` and set BATCH_PIPELINE_SPARK_PACKED",
        ),
        (
            {"import_error": "bad ELF"},
            "cannot import what tasks need (bad ELF)",
            "on the platform that built it",
        ),
        ({"package_digest": "xyz"}, "another release of batch-pipeline", "pack packed.tar.gz"),
    ],
    ids=["missing", "broken", "release"],
)
def test_find_problem_returns_problem_and_next_step(
    facts: dict[str, Any], problem: str, step: str
) -> None:
    complete: dict[str, Any] = {
        "host": "h",
        "python": "3.11.7",
        "missing_modules": (),
        "import_error": None,
        "package_digest": "abc",
    }
    assert find_problem(ExecutorReport(**complete), "abc") is None
    result = find_problem(ExecutorReport(**complete | facts), "abc")
    assert result is not None
    assert problem in result[0]
    assert step in result[1]


def test_probe_of_this_process_finds_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    probe = cloudpickle.loads(cloudpickle.dumps(make_probe()))  # type: ignore[no-untyped-call]

    report = msgspec.json.decode(probe(0), type=ExecutorReport)

    assert (report.missing_modules, report.import_error) == ((), None)
    assert report.package_digest == package_digest()
    assert report.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")


def test_probe_without_the_package_reports_it_missing(tmp_path: Path) -> None:
    pickled: bytes = cloudpickle.dumps(make_probe(["no_such"]))  # type: ignore[no-untyped-call]
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(tmp_path)]

    printed = subprocess.run(command, input=pickled, capture_output=True, check=True).stdout

    report = msgspec.json.decode(printed, type=ExecutorReport)
    assert report.missing_modules == ("batch_pipeline", "no_such")
    assert report.package_digest is None
