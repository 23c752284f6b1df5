"""The command `init`: the files that it writes and its messages."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from batch_pipeline.config.stream_file import load_streams
from batch_pipeline.model.errors import ConfigurationError, SettingError
from batch_pipeline.storage import s3_client
from batch_pipeline_tests.cli.commands import Run, invoke

CSV = b"sale_id,amount\n1,9.90\n2,1.50\n"


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    """Three sales files and one other file, none modified recently."""
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
    """A runner of `init` in an empty folder, without environment variables of the product."""
    for name in list(os.environ):
        if name.startswith("BATCH_PIPELINE_"):
            monkeypatch.delenv(name)
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path / "shop")

    return lambda *arguments: invoke("init", *arguments)


def test_init_writes_a_project_and_prints_next_steps(run: Run, landing: Path) -> None:
    result = run("--from", str(landing))
    assert (result.exit_code, result.exception) == (0, None)
    for words in (
        "selected    3 sales-*.csv: csv",
        "left out    1 visits-*.jsonl: another kind of file",
        "columns     sale_id integer, amount number",
        "dry plan    files: 3, 87 B; batches: 1",
        "written     streams/sales/defs.yaml, dagster.yaml, workspace.yaml, .gitignore",
        "batch-pipeline run sales",
        f"init --from {landing} --include 'visits-*.jsonl'  a stream for another",
    ):
        assert words in result.stdout
    written = sorted(str(path.relative_to(Path.cwd())) for path in Path.cwd().rglob("*"))
    assert written == [
        *(".gitignore", "dagster.yaml", "streams", "streams/sales", "streams/sales/defs.yaml"),
        "workspace.yaml",
    ]
    [stream] = load_streams(Path("streams")).values()
    assert (stream.name, stream.source.place) == ("sales", landing.as_uri())
    location = yaml.safe_load(Path("workspace.yaml").read_text())["load_from"][0]["python_module"]
    assert location["module_name"] == "batch_pipeline.definitions"
    ignored = Path(".gitignore").read_text().splitlines()
    assert ignored == [".batch_pipeline/", ".tmp_dagster_home_*/", "batches/"]


def test_second_init_adds_a_stream(run: Run, landing: Path) -> None:
    run("--from", str(landing))
    output = json.loads(run("--from", str(landing), "--include", "visits-*.jsonl", "--json").stdout)
    assert (output["stream"], output["format"], output["kept"]) == ("visits", "jsonl", {})
    assert output["written"] == [str(Path.cwd() / "streams/visits/defs.yaml")]
    assert set(load_streams(Path("streams"))) == {"sales", "visits"}


def test_init_keeps_existing_files_and_names_missing_lines(run: Run, landing: Path) -> None:
    Path("dagster.yaml").write_text("mine\n")
    Path(".gitignore").write_text("mine\nbatches/\n")
    result = run("--from", str(landing))
    assert result.exit_code == 0
    assert f"{Path.cwd() / 'dagster.yaml'} exists and was not changed" in result.stderr
    assert "add .batch_pipeline/, .tmp_dagster_home_*/ to it" in result.stderr
    assert Path("dagster.yaml").read_text() == "mine\n"
    assert Path(".gitignore").read_text() == "mine\nbatches/\n"


def test_init_of_an_existing_stream_fails_and_writes_nothing(run: Run, landing: Path) -> None:
    run("--from", str(landing))
    stream_file = Path("streams/sales/defs.yaml")
    before = stream_file.read_text()
    result = run("--from", str(landing))
    assert isinstance(result.exception, ConfigurationError)
    assert str(stream_file) in str(result.exception)
    assert "--name" in str(result.exception)
    stream_file.parent.rename("streams/other")
    result = run("--from", str(landing))
    assert "already has the stream sales" in str(result.exception)
    assert Path("streams/other/defs.yaml").read_text() == before
    Path("streams/other/defs.yaml").write_text(before + "typo: 1\n")
    assert "streams/other/defs.yaml" in str(run("--from", str(landing)).exception)
    assert not stream_file.exists()
    Path("streams/other/defs.yaml").write_text(before)
    run("--from", str(landing), "--name", "a_b")
    error = str(run("--from", str(landing), "--name", "a-b").exception)
    assert "already has the stream a_b, the same in Dagster as a-b. Nothing was" in error
    assert set(load_streams(Path("streams"))) == {"sales", "a_b"}


def test_init_creates_the_given_folder_and_prints_cd(
    run: Run, landing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_file = tmp_path / "env"
    env_file.write_text(f"BATCH_PIPELINE_STREAMS={tmp_path / 'elsewhere'}\n")
    monkeypatch.setenv("BATCH_PIPELINE_ENV_FILE", str(env_file))
    result = run("new", "--from", "../landing", "--name", "shop.sales")
    assert f"cd {Path.cwd() / 'new'}" in result.stdout
    assert f"BATCH_PIPELINE_STREAMS is {tmp_path / 'elsewhere'}" in result.stderr
    assert list(load_streams(Path("new/streams"))) == ["shop.sales"]


def test_init_with_an_invalid_setting_writes_nothing(
    run: Run, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_SPARK_MASTER", "sc://host")
    assert isinstance(run("--from", str(landing)).exception, SettingError)
    assert list(Path.cwd().iterdir()) == []


def test_init_names_a_step_for_each_mistake_in_a_path(run: Run, landing: Path) -> None:
    (landing / "a[1].csv").write_text("id\n1\n")
    os.utime(landing / "a[1].csv", (1_750_000_000, 1_750_000_000))
    error = str(run("--from", str(landing / "a[1].csv")).exception)
    assert f"Name its folder: --from {landing} --include 'a[[]1].csv'" in error
    result = run("--from", str(landing), "--include", "a[[]1].csv")
    assert result.exit_code == 0, result.output
    error = str(run("~nosuchuser/x", "--from", str(landing)).exception)
    assert "~nosuchuser/x: its ~ names no user's home folder. Nothing was written." in error


@pytest.mark.parametrize("name", ["streams", "streams/sales"])
def test_init_fails_if_a_file_has_the_name_of_a_folder(run: Run, landing: Path, name: str) -> None:
    file = Path(name)
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    result = run("--from", str(landing))
    assert isinstance(result.exception, ConfigurationError)
    assert "streams/sales/defs.yaml: cannot be written" in str(result.exception)


def test_init_that_fails_to_write_removes_all_its_files(run: Run, landing: Path) -> None:
    """The size limit of the process allows the stream file, not `dagster.yaml`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        result = run("--from", str(landing))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert "dagster.yaml: cannot be written (File too large)" in str(result.exception)
    assert [path for path in Path.cwd().rglob("*") if path.is_file()] == []


def test_init_of_a_bucket_uses_its_prefix_as_source(run: Run, bucket: str) -> None:
    missing = run("--from", f"{bucket}-elsewhere/in")
    assert isinstance(missing.exception, ConfigurationError)
    assert f"{bucket}-elsewhere/in: cannot be listed" in str(missing.exception)
    assert list(Path.cwd().iterdir()) == []
    for name in ("sales-1.csv", "sales-2.csv"):
        s3_client.client().put_object(
            Bucket=bucket.removeprefix("s3://"), Key=f"in/{name}", Body=CSV
        )
    output = json.loads(run("--from", f"{bucket}/in/", "--json").stdout)
    assert (output["stream"], output["source"]) == ("sales", f"{bucket}/in")
    assert (output["columns"], output["plan"]["files"]) == (
        {"sale_id": "integer", "amount": "number"},
        2,
    )
    [stream] = load_streams(Path("streams")).values()
    assert stream.source.place == f"{bucket}/in"


@pytest.mark.long
def test_init_imports_neither_spark_nor_dagster(landing: Path) -> None:
    script = (
        "import sys\n"
        "from batch_pipeline.cli import cli\n"
        "cli(['init', sys.argv[1], '--from', sys.argv[2], '--json'], standalone_mode=False)\n"
        "print([m for m in ('dagster', 'pyspark', 'alembic') if m in sys.modules])"
    )
    words = [sys.executable, "-c", script, str(landing.parent / "new"), str(landing)]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
