"""Completion as shells ask for it: a variable with the words, an answer in lines."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from batch_pipeline.cli import COMMANDS, cli
from batch_pipeline.cli.options import VARIABLE

HEAVY = ("alembic", "dagster", "psycopg", "pyarrow", "pyspark", "sqlalchemy")
STREAM_FILE = """\
type: batch_pipeline.BatchStream
attributes:
  stream: {name}
  source: {{uri: ./landing}}
"""


@pytest.fixture
def streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Streams `orders` and `order_lines`, and files that are no stream files; no database."""
    folder = tmp_path / "streams"
    files = {
        "a": STREAM_FILE.format(name="orders"),
        "b": STREAM_FILE.format(name="order_lines"),
        "broken": "attributes: [",
        "empty": "",
        "hostile": STREAM_FILE.format(name="'$(reboot)'"),
    }
    for name, text in files.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "defs.yaml").write_text(text)
    monkeypatch.setenv("BATCH_PIPELINE_STREAMS", str(folder))
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BATCH_PIPELINE_ENV_FILE", raising=False)
    return folder


def completed(monkeypatch: pytest.MonkeyPatch, line: str, shell: str = "bash") -> str:
    """Return what is answered to a shell for a command line that ends where the cursor is."""
    words = line.split(" ")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words) - 1))
    made = get_completion_class(shell)
    assert made is not None
    return made(cli, {}, "batch-pipeline", VARIABLE).complete()


def names(monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """Return what bash would offer."""
    return [one.partition(",")[2] for one in completed(monkeypatch, line).splitlines()]


def test_commands_are_completed_without_loading_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect all commands, or those that begin so."""
    assert names(monkeypatch, "batch-pipeline ") == [*COMMANDS]
    assert names(monkeypatch, "batch-pipeline re") == [*("reprocess", "reconcile")]


def test_options_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect the options of the command and of the whole."""
    assert names(monkeypatch, "batch-pipeline gc --") == [
        *("--unknown", "--dry-run", "--json", "--help")
    ]
    assert names(monkeypatch, "batch-pipeline --v") == ["--version"]


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("batch-pipeline status ", ["orders", "order_lines"]),
        ("batch-pipeline status order_", ["order_lines"]),
        ("batch-pipeline run orders ", ["order_lines"]),
        ("batch-pipeline plan --dry-run o", ["orders", "order_lines"]),
        ("batch-pipeline jobs pause orders", ["orders"]),
        ("batch-pipeline doctor --ceiling l", ["locks", "locking_read"]),
    ],
)
def test_values_are_completed(
    monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    """Expect names from stream files, each once, and closed sets; nothing of unfit files."""
    assert names(monkeypatch, line) == expected


def test_names_without_a_folder_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Expect silence where nothing can be read, settings included."""
    monkeypatch.setenv("BATCH_PIPELINE_STREAMS", str(tmp_path / "nowhere"))
    assert names(monkeypatch, "batch-pipeline status ") == []
    monkeypatch.setenv("BATCH_PIPELINE_ENV_FILE", str(tmp_path / "missing.env"))
    assert names(monkeypatch, "batch-pipeline status ") == []


def test_streams_folder_of_a_dot_env_file_is_found(
    streams: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Expect the settings to be read where the environment alone does not tell."""
    monkeypatch.delenv("BATCH_PIPELINE_STREAMS")
    (tmp_path / "pipeline.env").write_text(f"BATCH_PIPELINE_STREAMS={streams}\n")
    monkeypatch.setenv("BATCH_PIPELINE_ENV_FILE", str(tmp_path / "pipeline.env"))
    assert names(monkeypatch, "batch-pipeline status ") == ["orders", "order_lines"]


def test_files_are_left_to_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect the shell to be told that a file is wanted, and what it begins with."""
    for line in ("batch-pipeline explain orders-", "batch-pipeline messages x --state orders-"):
        assert completed(monkeypatch, line) == "file,orders-"


def test_shells_that_show_help_are_told_the_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect what the list says beside the name."""
    summary = COMMANDS["gc"].summary
    assert completed(monkeypatch, "batch-pipeline g", "fish") == f"plain,gc\t{summary}"
    assert completed(monkeypatch, "batch-pipeline g", "zsh") == f"plain\ngc\n{summary}"


@pytest.mark.usefixtures("streams")
def test_process_that_completes_names_loads_nothing_heavy() -> None:
    """Expect no database library, no Dagster and no Spark to be waited for."""
    script = (
        "import atexit, os, sys\n"
        f"heavy = {HEAVY!r}\n"
        "atexit.register(lambda: print([m for m in heavy if m in sys.modules], file=sys.stderr))\n"
        f"os.environ.update({VARIABLE}='bash_complete', COMP_WORDS='x status o', COMP_CWORD='2')\n"
        "from batch_pipeline.cli import main\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ended.stdout == "plain,orders\nplain,order_lines\n"
    assert (ended.returncode, ended.stderr) == (0, "[]\n")


def test_completion_command_is_refused_and_names_the_variable_of_click() -> None:
    ended = CliRunner().invoke(cli, ["completion", "bash"])
    assert ended.exit_code == 2
    assert "was removed" in ended.stderr
    assert f"{VARIABLE}=bash_source batch-pipeline" in ended.stderr


@pytest.mark.usefixtures("streams")
def test_real_bash_completes_by_the_script(tmp_path: Path) -> None:
    """Expect a command and the name of a stream, as after two presses of Tab."""
    folder, bash = Path(sys.executable).parent, shutil.which("bash")
    assert bash is not None
    script = f"""
PATH={folder}:$PATH
eval "$({VARIABLE}=bash_source batch-pipeline)"
complete -p batch-pipeline
ask() {{
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _batch_pipeline_completion batch-pipeline
  echo "${{COMPREPLY[@]}}"
}}
ask batch-pipeline stat
ask batch-pipeline explain orders ""
ask batch-pipeline status orders order_
"""
    ended = subprocess.run(
        [bash, "--norc", "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "complete -o nosort -F _batch_pipeline_completion batch-pipeline",
        "status",
        "",
        "order_lines",
    ]
