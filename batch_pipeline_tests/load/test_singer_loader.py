"""Singer targets as programs of others: what they are sent, and what their words are worth."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event

import psutil
import pytest

from batch_pipeline.load.singer_loader import SingerLoader
from batch_pipeline.load.singer_process import TargetRun
from batch_pipeline.model.errors import (
    BatchDataError,
    ConfigurationError,
    SettingError,
    TargetFailedError,
)
from batch_pipeline.model.load import Loaded, Loading, MessageMode
from batch_pipeline_tests.concurrency import is_running
from batch_pipeline_tests.factories import manifest
from batch_pipeline_tests.load import target_scripts as scripts
from batch_pipeline_tests.load.target_scripts import loader, loading, read

SHORT = timedelta(seconds=1)


def load(one: SingerLoader, what: Loading) -> Loaded:
    """Load one generation."""
    return one.load(what)


def test_target_that_acknowledges_at_its_end_has_loaded(tmp_path: Path) -> None:
    loaded = load(loader(tmp_path, scripts.GOOD), loading(tmp_path))
    messages = read(tmp_path)
    assert [one["type"] for one in messages] == ["SCHEMA", "RECORD", "RECORD", "STATE"]
    assert messages[1] == {"type": "RECORD", "stream": "orders", "record": {"order_id": 1}}
    assert loaded.records == 2
    assert loaded.state == messages[3]["value"]
    assert loaded.exit_code == 0
    assert loaded.mode == "record"


def test_target_that_is_no_installed_package_gets_records_and_the_reason_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = loader(tmp_path, scripts.GOOD)
    with caplog.at_level(logging.INFO, logger="batch_pipeline"):
        assert [load(one, loading(tmp_path)).mode for _ in range(2)] == ["record", "record"]
    (reason,) = caplog.messages
    assert reason.startswith("capabilities of warehouse: ")
    assert reason.endswith("python' is not a script of a Python environment")


def test_target_in_mode_batch_gets_the_files(tmp_path: Path) -> None:
    one = loader(tmp_path, scripts.GOOD, messages=MessageMode.BATCH)
    assert load(one, loading(tmp_path)).mode == "batch"
    schema, batch, state = read(tmp_path)
    assert (schema["type"], batch["type"], state["type"]) == ("SCHEMA", "BATCH", "STATE")
    assert batch["manifest"] == [f"file://{tmp_path}/part-1.jsonl.gz"]


def test_batch_without_records_is_loaded_by_its_state(tmp_path: Path) -> None:
    empty = replace(loading(tmp_path), manifest=manifest(part_files=(), records_read=0))
    assert load(loader(tmp_path, scripts.GOOD), empty).records == 0
    assert [one["type"] for one in read(tmp_path)] == ["SCHEMA", "STATE"]


def test_three_generations_take_one_start(tmp_path: Path) -> None:
    some = [loading(tmp_path, number) for number in (1, 2, 3)]
    some[2] = replace(some[2], manifest=replace(some[2].manifest, schema_version=2))
    loaded = list(loader(tmp_path, scripts.GOOD).load_together(some))
    assert len(loaded) == 3
    types = [one["type"] for one in read(tmp_path) if one["type"] != "RECORD"]
    assert types == ["SCHEMA", "STATE", "STATE", "SCHEMA", "STATE"]


def test_generation_is_given_as_soon_as_its_state_is_back(tmp_path: Path) -> None:
    some = [loading(tmp_path, 1), loading(tmp_path, 2)]
    together = loader(tmp_path, scripts.EAGER).load_together(some)
    assert next(together).exit_code is None
    assert next(together).exit_code == 0


def test_target_that_says_nothing_has_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(TargetFailedError, match="did not print the STATE") as caught:
        load(loader(tmp_path, scripts.SILENT), loading(tmp_path))
    assert str(caught.value) == (
        "orders: batch 00000001-00000003 was not loaded into warehouse: the target ended "
        "with exit code 0 but did not print the STATE of this batch. Some of its records may be "
        "there; it is not recorded as loaded. Compare its rows with the batch. If the target "
        "cannot read BATCH messages, set `messages: record` in the stream file, then run "
        "`batch-pipeline load` again."
    )


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (scripts.FIRST_ONLY, "did not print the STATE"),
        (scripts.DIES_AT_SECOND, "ended with signal 9"),
    ],
)
def test_target_that_ends_half_way_has_loaded_what_it_acknowledged(
    tmp_path: Path, body: str, problem: str
) -> None:
    some = [loading(tmp_path, number) for number in (1, 2, 3)]
    given: list[Loaded] = []
    with pytest.raises(TargetFailedError, match=problem) as caught:
        given.extend(loader(tmp_path, body).load_together(some))  # keeps what it got
    assert len(given) == 1
    assert "batch 00000004-00000006 was not loaded" in str(caught.value)


def test_target_that_acknowledges_and_fails_has_not_loaded(tmp_path: Path) -> None:
    one = loader(tmp_path, scripts.FAILS)
    with pytest.raises(TargetFailedError) as caught:
        load(one, loading(tmp_path))
    assert caught.value.exit_code == 4
    assert caught.value.said == "disk full, password hunter2!\n"


def test_secrets_of_the_configuration_are_taken_out_of_what_a_target_says(tmp_path: Path) -> None:
    config = {"out": str(tmp_path / "read"), "password": "$PASSWORD"}
    with pytest.raises(TargetFailedError) as caught:
        load(loader(tmp_path, scripts.FAILS, config=config), loading(tmp_path))
    assert caught.value.said == "disk full, password $PASSWORD\n"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("body", [scripts.AT_THE_CUT, scripts.IN_A_LONG_LINE], ids=["cut", "long"])
def test_no_part_of_a_secret_is_kept_of_long_words(tmp_path: Path, body: str) -> None:
    config = {"out": str(tmp_path / "read"), "password": "$PASSWORD"}
    with pytest.raises(TargetFailedError) as caught:
        load(loader(tmp_path, body, config=config), loading(tmp_path))
    assert "r2!" not in caught.value.said
    assert caught.value.said.endswith(("xxx\n", "is left out)\nthe end"))


def test_secret_in_a_state_is_not_kept(tmp_path: Path) -> None:
    config = {"out": str(tmp_path / "read"), "password": "$PASSWORD"}
    loaded = load(loader(tmp_path, scripts.IN_ITS_STATE, config=config), loading(tmp_path))
    assert loaded.state["password"] == "$PASSWORD"  # noqa: S105 - a name
    assert "hunter2" not in repr(loader(tmp_path, scripts.GOOD))


def test_variable_that_is_not_set_keeps_the_target_from_starting(tmp_path: Path) -> None:
    config = {"nested": [{"password": "$NOWHERE"}]}
    with pytest.raises(SettingError, match=r"NOWHERE.*targets\.warehouse\.config"):
        load(loader(tmp_path, scripts.GOOD, config=config), loading(tmp_path))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (scripts.NO_JSON, "the target printed 'loaded 5 rows', which is not JSON"),
        (scripts.WRONG_STATE, "which holds no STATE that was sent"),
        ("next(messages()); say([1])", "the target printed '[1]', which is not a JSON object"),
        ("next(messages()); print('x' * 3_000_000)", "which is not JSON"),
    ],
)
def test_target_that_prints_something_else_is_stopped(
    tmp_path: Path, body: str, problem: str
) -> None:
    with pytest.raises(TargetFailedError, match="the target printed") as caught:
        load(loader(tmp_path, body), loading(tmp_path))
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize("body", [scripts.NEVER_READS, scripts.HANGS_AND_IGNORES])
def test_target_that_does_nothing_is_stopped(tmp_path: Path, body: str) -> None:
    """Expect an end also for one that ignores being asked, although it has much left to read."""
    one = loader(tmp_path, body, timeout=SHORT)
    before = {*psutil.Process().children()}
    with pytest.raises(TargetFailedError, match="was idle for 1 s and was stopped"):
        load(replace(one, grace=SHORT), loading(tmp_path, records=100_000))
    assert {*psutil.Process().children()} <= before


def test_target_that_waits_for_records_is_not_idle() -> None:

    def slow_lines() -> Iterator[bytes]:
        Event().wait(1.5)  # as long as a large file takes to be read
        yield b"one\n"

    with TargetRun(["cat"], timeout=timedelta(seconds=0.5)) as run:
        assert list(run.exchange(slow_lines())) == [b"one\n"]
        assert run.exit_code == 0


def test_target_that_repeats_an_older_state_has_loaded_what_it_acknowledged(
    tmp_path: Path,
) -> None:
    some = [loading(tmp_path, number) for number in (1, 2, 3)]
    repeats = loader(tmp_path, scripts.REPEATS_THE_FIRST)
    loaded = list(repeats.load_together(some))
    assert [one.state["bookmarks"]["orders"]["publish_number"] for one in loaded][-1] == 3
    assert len(loaded) == 3


def test_target_that_floods_its_standard_error_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="batch_pipeline.targets"):
        loaded = load(loader(tmp_path, scripts.FLOODS), loading(tmp_path, records=50_000))
    assert loaded.records == 50_000
    assert len(loaded.log) == 64 * 2**10
    assert loaded.log.splitlines()[-1].startswith("line 39999 xxx")
    assert caplog.messages[0] == f"line 0 {'x' * 100}"
    assert len(caplog.messages) == 40_000


def test_target_that_ends_before_it_has_read_all_has_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(TargetFailedError, match="did not print the STATE"):
        load(loader(tmp_path, scripts.ENDS_EARLY), loading(tmp_path, records=100_000))


def test_child_that_a_target_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    one = replace(loader(tmp_path, scripts.CHILD_HOLDS_PIPES), grace=SHORT)
    before = {child.pid for child in psutil.process_iter()}
    assert load(one, loading(tmp_path)).exit_code == 0
    sleepers = [
        child
        for child in psutil.process_iter(["cmdline"])
        if child.pid not in before and "time.sleep(600)" in " ".join(child.info["cmdline"] or ())
    ]
    assert sleepers == []


@pytest.mark.parametrize("command", [("no-such-target",), ("/etc/hostname",)])
def test_target_that_cannot_be_started_is_the_operators_to_mend(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigurationError, match="cannot be started") as caught:
        load(loader(tmp_path, "", command=command), loading(tmp_path))
    assert f"'{command[0]}' cannot be started" in str(caught.value)
    assert "Nothing was sent." in str(caught.value)


def test_file_that_changed_is_not_taken_for_the_end(tmp_path: Path) -> None:
    what = loading(tmp_path, 2)
    Path(tmp_path / "part-2.jsonl.gz").write_bytes(b"something else")
    body = scripts.GOOD + f"open({str(tmp_path / 'ended')!r}, 'w')"
    together = loader(tmp_path, body).load_together([loading(tmp_path), what])
    with pytest.raises(BatchDataError, match=r"a part file of batch .* cannot be sent"):
        list(together)
    assert not (tmp_path / "ended").exists()


def test_configuration_is_gone_with_the_target(tmp_path: Path) -> None:
    body = scripts.GOOD + (
        "path = sys.argv[-1]\n"
        "kept.write(json.dumps({'type': 'X', 'path': path, 'file': os.stat(path).st_mode & 0o777,"
        " 'folder': os.stat(os.path.dirname(path)).st_mode & 0o777}))\n"
    )
    load(loader(tmp_path, body), loading(tmp_path))
    seen = read(tmp_path)[-1]
    assert (seen["file"], seen["folder"]) == (0o600, 0o700)
    assert not Path(seen["path"]).parent.exists()


INTERRUPTED = """
import logging, sys
from pathlib import Path
from batch_pipeline_tests.load.target_scripts import loader, loading
folder = Path(sys.argv[1])
logging.basicConfig(stream=sys.stdout)
logging.getLogger("batch_pipeline.targets").setLevel(logging.INFO)
body = "next(messages()); print('reading', file=sys.stderr); time.sleep(600)"
loader(folder, body).load(loading(folder))
"""


def test_interrupt_takes_the_target_down(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet, text=True) as ours:
        assert ours.stdout is not None
        assert "reading" in ours.stdout.readline()
        targets = psutil.Process(ours.pid).children()
        os.kill(ours.pid, signal.SIGINT)
        assert ours.wait() != 0
    assert len(targets) == 1
    assert not is_running(targets[0])
