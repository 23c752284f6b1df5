"""The target as a process: killed at any point, told to end, fed broken configs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline_tests.singer.target.target_fixture import TargetHome, record, schema, state

COMMAND = [sys.executable, "-m", "batch_pipeline.cli.target", "--config"]


@pytest.fixture
def home(tmp_path: Path, database_url: str) -> TargetHome:
    """A home for processes."""
    return TargetHome(root=tmp_path, database_url=database_url)


def _command(home: TargetHome, **config: Any) -> list[str]:
    path = home.root / "config.json"
    path.write_text(json.dumps(config))
    return [*COMMAND, str(path)]


def _said(first: int, last: int) -> bytes:
    """Records, each followed by a STATE that covers it."""
    messages = [schema()]
    for number in range(first, last + 1):
        messages += [record(number), state(number)]
    return b"".join(json.dumps(one).encode() + b"\n" for one in messages)


def _run(
    home: TargetHome, said: bytes, failpoints: str = "", **config: Any
) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **home.environment, "BATCH_PIPELINE_FAILPOINTS": failpoints}
    return subprocess.run(
        _command(home, **config), input=said, capture_output=True, env=environment, check=False
    )


@pytest.mark.parametrize(
    "point",
    [
        "target.before_rename",
        "target.after_rename",
        "register.before_commit",
        "target.after_register",
        "target.after_state",
    ],
)
def test_killed_target_goes_on_from_its_last_state_without_a_loss(
    home: TargetHome, point: str
) -> None:
    killed = _run(home, _said(1, 6), f"{point}=kill", max_records=3)
    assert killed.returncode == -signal.SIGKILL
    states = [json.loads(line)["at"] for line in killed.stdout.splitlines()]
    covered = states[-1] if states else 0
    assert all(at in home.ids() for at in range(1, covered + 1))
    again = _run(home, _said(covered + 1, 6), max_records=3)
    assert again.returncode == 0
    assert json.loads(again.stdout.splitlines()[-1]) == {"at": 6}
    found = home.ids()
    assert set(found) == {1, 2, 3, 4, 5, 6}
    assert all(found.count(at) == 1 for at in range(1, covered + 1))
    assert not [name for name in home.landed() if name.startswith(".")]


def test_target_that_is_told_to_end_lands_what_it_has(home: TargetHome) -> None:
    environment = {**os.environ, **home.environment}
    with subprocess.Popen(
        _command(home, max_age_seconds=3600),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        early = b'{"type":"STATE","value":{"at":0}}\n'
        process.stdin.write(early + _said(1, 2))
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"at": 0}  # it is reading
        process.send_signal(signal.SIGTERM)
        printed = process.stdout.read().splitlines()
    assert process.returncode == 128 + signal.SIGTERM
    acknowledged = [0, *(json.loads(line)["at"] for line in printed)]
    assert set(home.ids()) >= set(range(1, acknowledged[-1] + 1))
    assert not [name for name in home.landed() if name.startswith(".")]


def test_silent_tap_does_not_keep_records_from_landing(home: TargetHome) -> None:
    """Expect STATE after the age bound, although no further line comes."""
    environment = {**os.environ, **home.environment}
    with subprocess.Popen(
        _command(home, max_age_seconds=0.2),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(_said(1, 1))
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"at": 1}
        process.stdin.close()
    assert process.returncode == 0
    assert home.ids() == [1]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"max_record": 1}, "max_record is 1; expected no such key; did you mean max_records?"),
        ({"batch_config": {"storage": {"roots": "x"}}}, "batch_config.storage.roots"),
        ({"format": "csv"}, "format is 'csv'; expected jsonl or parquet."),
        ({"compression": "snappy"}, "encoding.compression is 'snappy'"),
    ],
)
def test_config_with_a_mistake_ends_the_target_with_one_sentence(
    home: TargetHome, config: dict[str, Any], told: str
) -> None:
    ended = _run(home, _said(1, 1), **config)
    assert ended.returncode == 1
    assert told in ended.stderr.decode()
    assert b"Traceback" not in ended.stderr


@pytest.mark.parametrize("text", [None, "{"])
def test_config_that_cannot_be_read_ends_the_target_with_one_sentence(
    home: TargetHome, text: str | None
) -> None:
    path = home.root / "broken.json"
    if text is not None:
        path.write_text(text)
    ended = subprocess.run([*COMMAND, str(path)], input=b"", capture_output=True, check=False)
    assert ended.returncode == 1
    assert b"The config cannot be read: " in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_target_tells_about_itself_without_a_home(home: TargetHome) -> None:
    command = [*COMMAND[:-1], "--about", "--format", "json"]
    environment = {**os.environ, **home.environment}
    told = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert "batch" in json.loads(told.stdout)["capabilities"]
    assert not (home.root / "home").exists()
