"""Colours of the real command's output on terminals of each kind."""

import os
import pty
import subprocess
from contextlib import suppress

import pytest

from batch_pipeline_tests.acceptance.sandbox import LONGEST_SECONDS, Sandbox, command

RED = "\x1b[31m"


@pytest.mark.parametrize(
    ("variables", "has_colour"),
    [
        ({"TERM": "xterm", "NO_COLOR": None}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb", "NO_COLOR": None}, False),
    ],
    ids=["usual", "no colour", "dumb"],
)
def test_error_is_red_only_on_terminals_with_colours(
    sandbox: Sandbox, variables: dict[str, str | None], has_colour: bool
) -> None:
    sandbox.write_stream("orders")
    master, slave = pty.openpty()
    result = subprocess.run(
        command("status", "refunds"),
        env=sandbox.with_variables(**variables).environment,
        cwd=sandbox.folder,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        check=False,
        timeout=LONGEST_SECONDS,
    )
    os.close(slave)
    output = b""
    with suppress(OSError):  # the other end is closed
        while True:
            output += os.read(master, 65_536)
    os.close(master)
    text = output.decode()
    assert result.returncode == 1
    assert text.replace(RED, "").startswith("Error: No stream 'refunds'")
    assert (RED in text, "\x1b" in text) == (has_colour, has_colour)
