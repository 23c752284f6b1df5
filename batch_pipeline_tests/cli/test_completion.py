"""Shell completion, which reads the command line from variables and prints lines."""

import os
import sys
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from batch_pipeline.cli import COMMANDS, cli
from batch_pipeline.cli.options import VARIABLE
from batch_pipeline_tests.acceptance.sandbox import program_output, run_program
from batch_pipeline_tests.docs.pages import blocks

HEAVY = ("alembic", "dagster", "psycopg", "pyarrow", "pyspark", "sqlalchemy")
STREAM_FILE = """\
type: batch_pipeline.BatchStream
attributes:
  stream: {name}
  source: {{uri: ./landing}}
"""


@pytest.fixture
def streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Streams `orders` and `order_lines` beside invalid stream files; no database."""
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


def complete(monkeypatch: pytest.MonkeyPatch, line: str, shell: str = "bash") -> str:
    """Return the output for a shell and a command line that ends at the cursor."""
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    shell_class = get_completion_class(shell)
    assert shell_class is not None
    return shell_class(cli, {}, "batch-pipeline", VARIABLE).complete()


def complete_in_bash(monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """Return the words that bash would offer."""
    return [answer.partition(",")[2] for answer in complete(monkeypatch, line).splitlines()]


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("batch-pipeline ", [*COMMANDS]),
        ("batch-pipeline re", ["reprocess", "reconcile"]),
        ("batch-pipeline gc --", ["--unknown", "--dry-run", "--json", "--help"]),
        ("batch-pipeline --v", ["--version"]),
        ("batch-pipeline status order_", ["order_lines"]),
        ("batch-pipeline run orders ", ["order_lines"]),
        ("batch-pipeline retry ", [*COMMANDS]),  # was removed, and is unknown like others
        ("batch-pipeline plan --dry-run o", ["orders", "order_lines"]),
        ("batch-pipeline jobs pause orders", ["orders"]),
        ("batch-pipeline doctor --ceiling l", ["locks", "locking_read"]),
    ],
)
def test_commands_options_and_values_are_completed(
    monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    """Names from invalid stream files are not offered."""
    assert complete_in_bash(monkeypatch, line) == expected


def test_streams_folder_is_read_from_an_env_file(
    streams: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Missing files complete to nothing."""
    status = "batch-pipeline status "
    monkeypatch.setenv("BATCH_PIPELINE_STREAMS", str(tmp_path / "nowhere"))
    assert complete_in_bash(monkeypatch, status) == []
    monkeypatch.delenv("BATCH_PIPELINE_STREAMS")
    monkeypatch.setenv("BATCH_PIPELINE_ENV_FILE", str(tmp_path / "pipeline.env"))
    assert complete_in_bash(monkeypatch, status) == []
    (tmp_path / "pipeline.env").write_text(f"BATCH_PIPELINE_STREAMS={streams}\n")
    assert complete_in_bash(monkeypatch, status) == ["orders", "order_lines"]


def test_file_names_are_completed_by_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in ("batch-pipeline explain orders-", "batch-pipeline messages x --state orders-"):
        assert complete(monkeypatch, line) == "file,orders-"


def test_zsh_gets_command_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = f"plain\ngc\n{COMMANDS['gc']}"
    assert complete(monkeypatch, "batch-pipeline g", "zsh") == expected


@pytest.mark.usefixtures("streams")
def test_completion_imports_no_heavy_packages() -> None:
    script = (
        "import atexit, os, sys\n"
        f"heavy = {HEAVY!r}\n"
        "atexit.register(lambda: print([m for m in heavy if m in sys.modules], file=sys.stderr))\n"
        f"os.environ.update({VARIABLE}='bash_complete', COMP_WORDS='x status o', COMP_CWORD='2')\n"
        "from batch_pipeline.cli import main\n"
        "main()\n"
    )
    result = run_program(sys.executable, "-c", script)
    assert result.stdout == "plain,orders\nplain,order_lines\n"
    assert (result.returncode, result.stderr) == (0, "[]\n")


ASK_BASH = """
source ~/.bashrc
complete -p batch-pipeline
ask() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _batch_pipeline_completion batch-pipeline
  echo "${COMPREPLY[@]}"
}
ask batch-pipeline stat
ask batch-pipeline explain orders ""
ask batch-pipeline status orders order_
"""


@pytest.mark.usefixtures("streams")
def test_lines_of_the_page_complete_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [script] = [block.text for block in blocks("bash") if block.page.stem == "command_line"]
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(programs))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config/fish/completions").mkdir(parents=True)
    program_output("/bin/bash", "-e", "-c", script)
    shown = program_output("/bin/bash", "-c", ASK_BASH, cwd=tmp_path)
    assert shown.splitlines() == [
        "complete -o nosort -F _batch_pipeline_completion batch-pipeline",
        "status",
        "",
        "order_lines",
    ]
    assert (tmp_path / ".zshrc").read_text().startswith("eval ")
    assert (
        "batch-pipeline" in (tmp_path / ".config/fish/completions/batch-pipeline.fish").read_text()
    )
