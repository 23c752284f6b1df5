"""The probe of an executor, run in this process and in one without the package."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from pyspark import SparkFiles, cloudpickle

from batch_pipeline.spark.executor_probe import ExecutorReport, make_probe
from batch_pipeline.spark.packed_archive import ArchiveNote

WITHOUT_THE_PACKAGE = """\
import pickle, sys
from pyspark import SparkFiles
sys.modules["batch_pipeline"] = None
SparkFiles._is_running_on_worker = True
SparkFiles._root_directory = sys.argv[1]
print(pickle.load(sys.stdin.buffer)(0))
"""


def test_probe_of_this_process_finds_what_tasks_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    probe = cloudpickle.loads(cloudpickle.dumps(make_probe()))  # type: ignore[no-untyped-call]

    report = msgspec.json.decode(probe(0), type=ExecutorReport)

    assert (report.missing_modules, report.import_error, report.archive_note) == ((), None, None)
    assert report.package_digest == ArchiveNote.of_this_process({}).package
    assert report.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")


def test_probe_on_an_executor_without_the_package_reports_it_missing(tmp_path: Path) -> None:
    pickled: bytes = cloudpickle.dumps(make_probe(["no_such"]))  # type: ignore[no-untyped-call]
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(tmp_path)]

    printed = subprocess.run(command, input=pickled, capture_output=True, check=True).stdout

    report = msgspec.json.decode(printed, type=ExecutorReport)
    assert report.missing_modules == ("batch_pipeline", "no_such")
    assert (report.package_digest, report.archive_note) == (None, None)
