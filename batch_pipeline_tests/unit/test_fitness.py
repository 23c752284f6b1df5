"""What is told of executors that cannot run tasks."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark import SparkFiles, cloudpickle

from batch_pipeline.spark.clusters.archive_note import ArchiveNote
from batch_pipeline.spark.clusters.fitness import Seen, probe, problem_of, unfit_executor

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
        ("ModuleNotFoundError: No module named 'pyarrow.lib'\n", "lacks the module pyarrow.lib"),
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


def test_executor_that_has_everything_is_fit() -> None:
    """The same sources count, wherever they lie."""
    assert problem_of(seen(), HERE) is None


@pytest.mark.parametrize(
    ("facts", "problem", "step"),
    [
        ({"missing": ("isal",)}, "its Python 3.11.7 lacks the module isal", "pack packed.tar.gz"),
        ({"missing": ("a", "b")}, "lacks the modules a, b", "BATCH_PIPELINE_SPARK_PACKED"),
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
