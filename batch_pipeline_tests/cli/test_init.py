"""The command `init`: what it writes, leaves alone and says; nothing else is opened for it."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from batch_pipeline.cli import cli
from batch_pipeline.config.stream_file import load_streams
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.storage import s3_client

Run = Callable[..., Result]
CSV = b"sale_id,amount\n1,9.90\n2,1.50\n"


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    """Three files of sales, one of something else, that have rested."""
    folder = tmp_path / "landing"
    folder.mkdir()
    for name in ("sales-1.csv", "sales-2.csv", "sales-3.csv"):
        (folder / name).write_bytes(CSV)
    (folder / "visits-1.jsonl").write_bytes(b'{"page": "/"}\n')
    for path in folder.iterdir():
        os.utime(path, (1_750_000_000, 1_750_000_000))
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command `init` in a folder of its own, with nothing of the product in the environment."""
    for name in list(os.environ):
        if name.startswith("BATCH_PIPELINE_"):
            monkeypatch.delenv(name)
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path / "shop")

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["init", *arguments])

    return invoke


def test_init_writes_a_project_and_says_what_comes_next(run: Run, landing: Path) -> None:
    """Expect four files, what was left out and why, the dry plan, and commands to type."""
    result = run("--from", str(landing))
    assert (result.exit_code, result.exception) == (0, None)
    for words in (
        "selected    3 sales-*.csv: csv",
        "left out    1 visits-*.jsonl: another kind of file",
        "columns     sale_id integer, amount number",
        "dry plan    files: 3, 87 B; batches: 1",
        "written     streams/sales/defs.yaml, dagster.yaml, workspace.yaml, .gitignore",
        "batch-pipeline run sales",
        f"init --from {landing} --include 'visits-*.jsonl'",
    ):
        assert words in result.stdout
    here = sorted(str(path.relative_to(Path.cwd())) for path in Path.cwd().rglob("*"))
    assert here == [
        *(".gitignore", "dagster.yaml", "streams", "streams/sales", "streams/sales/defs.yaml"),
        "workspace.yaml",
    ]
    [stream] = load_streams(Path("streams")).values()
    assert (stream.name, stream.source.place) == ("sales", landing.as_uri())
    location = yaml.safe_load(Path("workspace.yaml").read_text())["load_from"][0]["python_module"]
    assert location["module_name"] == "batch_pipeline.definitions"
    ignored = Path(".gitignore").read_text().splitlines()
    assert ignored == [".batch_pipeline/", ".tmp_dagster_home_*/", "batches/"]


def test_init_again_adds_the_next_stream_to_the_project(run: Run, landing: Path) -> None:
    """Expect a second stream file, and the others as they were."""
    run("--from", str(landing))
    told = json.loads(run("--from", str(landing), "--include", "visits-*.jsonl", "--json").stdout)
    assert (told["stream"], told["format"], told["kept"]) == ("visits", "jsonl", {})
    assert told["written"] == [str(Path.cwd() / "streams/visits/defs.yaml")]
    assert set(load_streams(Path("streams"))) == {"sales", "visits"}


def test_init_overwrites_nothing_and_names_what_is_there(run: Run, landing: Path) -> None:
    """Expect a person's own files as they were, each with what to do about it."""
    Path("dagster.yaml").write_text("mine\n")
    Path(".gitignore").write_text("mine\nbatches/\n")
    result = run("--from", str(landing))
    assert result.exit_code == 0
    assert f"{Path.cwd() / 'dagster.yaml'} exists and was not changed" in result.stderr
    assert "add .batch_pipeline/, .tmp_dagster_home_*/ to it" in result.stderr
    assert Path("dagster.yaml").read_text() == "mine\n"
    assert Path(".gitignore").read_text() == "mine\nbatches/\n"


def test_init_of_a_stream_that_is_there_is_refused(run: Run, landing: Path) -> None:
    """Expect the file's name and nothing written, also where another file has the stream."""
    run("--from", str(landing))
    stream_file = Path("streams/sales/defs.yaml")
    before = stream_file.read_text()
    result = run("--from", str(landing))
    assert isinstance(result.exception, ConfigurationError)
    assert str(stream_file) in str(result.exception)
    assert "--name" in str(result.exception)
    stream_file.parent.rename("streams/other")
    result = run("--from", str(landing))
    assert "has the stream sales already" in str(result.exception)
    assert Path("streams/other/defs.yaml").read_text() == before
    assert not stream_file.exists()


def test_init_into_another_folder_says_where_to_go(
    run: Run, landing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the folder to be made, and a note where the environment points elsewhere."""
    monkeypatch.setenv("BATCH_PIPELINE_STREAMS", str(tmp_path / "elsewhere"))
    result = run("new", "--from", "../landing", "--name", "shop.sales")
    assert f"cd {Path.cwd() / 'new'}" in result.stdout
    assert f"BATCH_PIPELINE_STREAMS is {tmp_path / 'elsewhere'}" in result.stderr
    assert list(load_streams(Path("new/streams"))) == ["shop.sales"]


@pytest.mark.parametrize("name", ["streams", "streams/sales"])
def test_init_of_a_file_in_the_way_says_so(run: Run, landing: Path, name: str) -> None:
    """Expect what cannot be written, and why."""
    in_the_way = Path(name)
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.write_text("")
    result = run("--from", str(landing))
    assert isinstance(result.exception, ConfigurationError)
    assert "streams/sales/defs.yaml: cannot be written" in str(result.exception)


def test_init_that_cannot_write_all_files_leaves_none(run: Run, landing: Path) -> None:
    """Expect no half of a project: here a file would be made longer than any may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ours = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))  # enough for the stream file
    try:
        result = run("--from", str(landing))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ours)
    assert "dagster.yaml: cannot be written (File too large)" in str(result.exception)
    assert [path for path in Path.cwd().rglob("*") if path.is_file()] == []


def test_init_of_a_bucket_proposes_its_prefix(run: Run, bucket: str) -> None:
    """Expect objects to be listed and looked into as files are."""
    for name in ("sales-1.csv", "sales-2.csv"):
        s3_client.client().put_object(
            Bucket=bucket.removeprefix("s3://"), Key=f"in/{name}", Body=CSV
        )
    told = json.loads(run("--from", f"{bucket}/in/", "--json").stdout)
    assert (told["stream"], told["source"]) == ("sales", f"{bucket}/in")
    assert (told["columns"], told["plan"]["files"]) == (
        {"sale_id": "integer", "amount": "number"},
        2,
    )
    [stream] = load_streams(Path("streams")).values()
    assert stream.source.place == f"{bucket}/in"


def test_init_of_a_bucket_that_is_not_there_says_so(run: Run, bucket: str) -> None:
    """Expect the place, what the store says, and nothing written."""
    result = run("--from", f"{bucket}-elsewhere/in")
    assert isinstance(result.exception, ConfigurationError)
    assert f"{bucket}-elsewhere/in: cannot be listed" in str(result.exception)
    assert list(Path.cwd().iterdir()) == []


def test_init_needs_neither_spark_nor_dagster(landing: Path) -> None:
    """Expect their packages not to be loaded, which is what makes it quick."""
    script = (
        "import sys\n"
        "from batch_pipeline.cli import cli\n"
        "cli(['init', sys.argv[1], '--from', sys.argv[2], '--json'], standalone_mode=False)\n"
        "print([m for m in ('dagster', 'pyspark', 'alembic') if m in sys.modules])"
    )
    words = [sys.executable, "-c", script, str(landing.parent / "new"), str(landing)]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
