"""The target as a process: kills at any point, signals, invalid configurations."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from batch_pipeline.__main__ import target as run_target
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline_tests.singer.tap.tap_fixture import signals_restored
from batch_pipeline_tests.singer.target.target_fixture import TargetHome, record, schema, state

COMMAND = [sys.executable, "-m", "batch_pipeline.cli.target", "--config"]


def _command(home: TargetHome, **config: Any) -> list[str]:
    path = home.root / "config.json"
    path.write_text(json.dumps(config))
    return [*COMMAND, str(path)]


def _input(first: int, last: int) -> bytes:
    """Return records, each followed by a STATE that covers it."""
    messages = [schema()]
    for number in range(first, last + 1):
        messages += [record(number), state(number)]
    return b"".join(json.dumps(one).encode() + b"\n" for one in messages)


@pytest.mark.parametrize(
    "point",
    [
        *("target.before_rename", "target.after_rename", "target.after_state"),
        # A rolled-back transaction leaves what `target.after_rename` leaves.
        pytest.param("register.before_commit", marks=pytest.mark.long),
        # Without `--long`, guarantees/test_crashes.py kills a target here.
        pytest.param("target.after_register", marks=pytest.mark.long),
    ],
)
def test_killed_target_resumes_from_last_state_without_loss(home: TargetHome, point: str) -> None:
    killed = subprocess.run(
        _command(home, max_records=3),
        input=_input(1, 6),
        capture_output=True,
        env={**os.environ, VARIABLE: f"{point}=kill"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    states = [json.loads(line)["at"] for line in killed.stdout.splitlines()]
    covered = states[-1] if states else 0
    assert all(at in home.ids() for at in range(1, covered + 1))
    assert home.run(*_input(covered + 1, 6).splitlines(), max_records=3)[-1] == {"at": 6}
    ids = home.ids()
    assert set(ids) == {1, 2, 3, 4, 5, 6}
    assert all(ids.count(at) == 1 for at in range(1, covered + 1))
    assert not [name for name in home.landed() if name.startswith(".")]


def _start(home: TargetHome, data: bytes, **config: Any) -> "subprocess.Popen[bytes]":
    """Start the target and send it lines; its input remains open."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(_command(home, **config), stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()
    return process


def test_target_lands_pending_records_on_sigterm(home: TargetHome) -> None:
    first_state = b'{"type":"STATE","value":{"at":0}}\n'
    with _start(home, first_state + _input(1, 2), max_age_seconds=3600) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"at": 0}  # the target is reading
        process.send_signal(signal.SIGTERM)
        printed = process.stdout.read().splitlines()
    assert process.returncode == 128 + signal.SIGTERM
    acknowledged = [0, *(json.loads(line)["at"] for line in printed)]
    assert set(home.ids()) >= set(range(1, acknowledged[-1] + 1))
    assert not [name for name in home.landed() if name.startswith(".")]


@pytest.mark.parametrize("is_full", [False, True])
def test_output_that_cannot_be_written_ends_the_target(home: TargetHome, is_full: bool) -> None:
    reader, closed = os.pipe()
    os.close(reader)
    with os.fdopen(os.open("/dev/full", os.O_WRONLY) if is_full else closed, "wb") as output:
        done = subprocess.run(
            _command(home, max_records=1),
            input=_input(1, 2),
            stdout=output,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == (1 if is_full else 128 + signal.SIGPIPE)
    assert (b"Error: The output cannot be written (No space" in done.stderr) is is_full
    assert b"Traceback" not in done.stderr
    assert home.ids() == [1]


def test_records_land_after_max_age_without_further_input(home: TargetHome) -> None:
    with _start(home, _input(1, 1), max_age_seconds=0.2) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"at": 1}
        process.stdin.close()
    assert process.returncode == 0
    assert home.ids() == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"max_record": 1}', "not a key of the target's config. Did you mean 'max_records'? "),
        (b"{", "The config cannot be read: Expecting property"),
        (b"[1]", "The config cannot be read: it is not a JSON object. Nothing was done. "),
        (b"\xff", "The config cannot be read: 'utf-8' codec"),
        (None, "The config cannot be read: [Errno 21] Is a directory: "),
    ],
    ids=["unknown key", "no JSON", "no object", "no UTF-8", "no file"],
)
def test_invalid_config_exits_with_message(
    home: TargetHome,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: bytes | None,
    message: str,
) -> None:
    path = home.root / ("config.json" if text else "")
    if text is not None:
        path.write_bytes(text)
    assert _exit_code(monkeypatch, "--config", str(path)) == 1
    output = capsys.readouterr().err
    [error] = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert message in error
    assert "Traceback" not in output


def test_about_works_without_a_home(
    home: TargetHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code(monkeypatch, "--about", "--format", "json") == 0
    assert _exit_code(monkeypatch, "--bogus") == 2
    assert "batch" in json.loads(capsys.readouterr().out)["capabilities"]
    assert not (home.root / "home").exists()


def _exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Run the command in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["target-batch-pipeline", *arguments])
    with signals_restored(), pytest.raises(SystemExit) as exit_:
        run_target()
    return exit_.value.code or 0
