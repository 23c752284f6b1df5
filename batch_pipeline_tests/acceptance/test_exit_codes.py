"""Exit codes of the real command, each once; those of batches that failed are with their commands.

3 is tested with `run`, `load` and `verify`.
"""

import os
import signal
import subprocess

import pytest

from batch_pipeline_tests.acceptance.workplace import LONGEST_SECONDS, Workplace, command

NOBODY = "postgresql://ann@127.0.0.1:1/inventory"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--version",), 0, ""),
        (("status", "refunds"), 1, "No stream 'refunds'"),
        (("status", "--colour"), 2, "No such option"),
        (("status", "orders"), 75, "127.0.0.1:1/inventory"),
    ],
)
def test_command_leaves_the_code_of_what_happened(
    workplace: Workplace, words: tuple[str, ...], code: int, said: str
) -> None:
    """Expect done, yours to fix, wrong usage and try again later to be told apart."""
    workplace.write_stream("orders")
    ended = workplace.given(BATCH_PIPELINE_INVENTORY_CONN=NOBODY).run(*words)
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_interrupted_command_leaves_130(workplace: Workplace) -> None:
    """Expect the code of Ctrl-C, and one message, from a command that waits for its state file."""
    workplace.write_stream("orders")
    state = workplace.folder / "state.json"
    os.mkfifo(state)
    process = workplace.start("messages", "orders", "--state", str(state))
    with state.open("w"):  # it is opened for reading now
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_SECONDS) == 130
    assert "error: Interrupted." in workplace.output.read_text()


def test_command_whose_reader_is_gone_ends_as_a_filter_does(workplace: Workplace) -> None:
    """Expect 128 and the number of SIGPIPE, and not a word, as in `… | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        command("status", "-h"),
        env=workplace.environment,
        cwd=workplace.folder,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=LONGEST_SECONDS,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")
