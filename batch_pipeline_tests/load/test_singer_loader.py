"""Loading into Singer targets: the messages they get, their acknowledgements and failures."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from batch_pipeline.load.singer_process import TargetRun
from batch_pipeline.model.errors import (
    BatchDataError,
    ConfigurationError,
    SettingError,
    TargetFailedError,
)
from batch_pipeline.model.load import Loaded, MessageMode
from batch_pipeline_tests.factories import manifest
from batch_pipeline_tests.load import target_scripts as scripts
from batch_pipeline_tests.load.target_scripts import loader, loading, read

SHORT = timedelta(seconds=1)
SECRET = {"password": "$PASSWORD"}  # its value is hunter2!


def load(folder: Path, body: str, **overrides: Any) -> Loaded:
    """Load one generation of two records into a target."""
    return loader(folder, body, **overrides).load(loading(folder))


def load_three(folder: Path, body: str) -> tuple[list[Loaded], TargetFailedError | None]:
    """Load three generations by one process; return those it acknowledged and the error."""
    loadings = [loading(folder, number) for number in (1, 2, 3)]
    loaded: list[Loaded] = []
    try:
        loaded.extend(loader(folder, body).load_together(loadings))  # keeps items on an error
    except TargetFailedError as error:
        return loaded, error
    return loaded, None


def error_of(folder: Path, body: str, **overrides: Any) -> TargetFailedError:
    """Return the error of a target that fails to load a generation."""
    with pytest.raises(TargetFailedError) as caught:
        load(folder, body, **overrides)
    return caught.value


def test_target_that_acknowledges_at_its_end_has_loaded(tmp_path: Path) -> None:
    loaded = load(tmp_path, scripts.GOOD)
    messages = read(tmp_path)
    types = [message["type"] for message in messages]
    assert types == ["SCHEMA", "RECORD", "RECORD", "STATE"]
    assert messages[1] == {"type": "RECORD", "stream": "orders", "record": {"order_id": 1}}
    assert loaded == Loaded(records=2, state=messages[3]["value"], exit_code=0, mode="record")


def test_target_that_is_not_an_installed_package_gets_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = loader(tmp_path, scripts.GOOD)
    with caplog.at_level(logging.INFO, logger="batch_pipeline"):
        modes = [target.load(loading(tmp_path)).mode for _ in range(2)]
    assert modes == ["record", "record"]
    (reason,) = caplog.messages
    assert reason.startswith("capabilities of warehouse: ")
    assert reason.endswith("python' is not a script of a Python environment")


def test_target_in_batch_mode_gets_the_part_files(tmp_path: Path) -> None:
    assert load(tmp_path, scripts.GOOD, messages=MessageMode.BATCH).mode == "batch"
    schema, batch, state = read(tmp_path)
    assert (schema["type"], batch["type"], state["type"]) == ("SCHEMA", "BATCH", "STATE")
    assert batch["manifest"] == [f"file://{tmp_path}/part-1.jsonl.gz"]


def test_batch_without_records_is_loaded_with_a_state_only(tmp_path: Path) -> None:
    """No SCHEMA is sent, because it may have no columns yet, and some targets create a table."""
    empty = replace(loading(tmp_path), manifest=manifest(part_files=(), records_read=0))
    target, second = loader(tmp_path, scripts.GOOD), loading(tmp_path, 2)
    assert [one.records for one in target.load_together([empty, second])] == [0, 2]
    types = [message["type"] for message in read(tmp_path)]
    assert types == ["STATE", "SCHEMA", "RECORD", "RECORD", "STATE"]


def test_several_generations_are_loaded_by_one_process(tmp_path: Path) -> None:
    loadings = [loading(tmp_path, number) for number in (1, 2, 3)]
    loadings[2] = replace(loadings[2], manifest=replace(loadings[2].manifest, schema_version=2))
    assert len(list(loader(tmp_path, scripts.GOOD).load_together(loadings))) == 3
    types = [message["type"] for message in read(tmp_path) if message["type"] != "RECORD"]
    assert types == ["SCHEMA", "STATE", "STATE", "SCHEMA", "STATE"]


def test_generation_is_returned_as_soon_as_its_state_is_printed(tmp_path: Path) -> None:
    loadings = [loading(tmp_path, 1), loading(tmp_path, 2)]
    loaded = loader(tmp_path, scripts.EAGER).load_together(loadings)
    assert (next(loaded).exit_code, next(loaded).exit_code) == (None, 0)


def test_target_without_acknowledgement_has_not_loaded(tmp_path: Path) -> None:
    assert str(error_of(tmp_path, scripts.SILENT)) == (
        "orders: batch 00000001-00000003 was not loaded into warehouse: the target ended "
        "with exit code 0 but did not print the STATE of this batch. Some of its records may be "
        "there; it is not recorded as loaded. Compare its rows with the batch. If the target "
        "cannot read BATCH messages, set `messages: record` in the stream file, then run "
        "`batch-pipeline load` again."
    )


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (scripts.ACKNOWLEDGES_FIRST_ONLY, "did not print the STATE"),
        (scripts.KILLS_ITSELF_AT_SECOND_STATE, "ended with signal 9"),
    ],
)
def test_target_that_ends_early_has_loaded_what_it_acknowledged(
    tmp_path: Path, body: str, problem: str
) -> None:
    loaded, error = load_three(tmp_path, body)
    assert len(loaded) == 1
    assert problem in str(error)
    assert "batch 00000004-00000006 was not loaded" in str(error)


def test_configured_secrets_are_redacted_in_the_output_of_a_target(tmp_path: Path) -> None:
    """The target has acknowledged the batch and fails, so the batch was not loaded."""
    plain = error_of(tmp_path, scripts.FAILS_AFTER_STATE)
    assert (plain.exit_code, plain.stderr) == (4, "disk full, password hunter2!\n")
    error = error_of(tmp_path, scripts.FAILS_AFTER_STATE, config=SECRET)
    assert error.stderr == "disk full, password $PASSWORD\n"
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    "body", [scripts.LEAKS_AT_LOG_LIMIT, scripts.LEAKS_IN_LONG_LINE], ids=["cut", "long"]
)
def test_no_part_of_a_secret_remains_in_truncated_output(tmp_path: Path, body: str) -> None:
    stderr = error_of(tmp_path, body, config=SECRET).stderr
    assert "r2!" not in stderr
    assert stderr.endswith(("xxx\n", "is omitted)\nthe end"))


def test_secret_in_a_state_is_redacted(tmp_path: Path) -> None:
    loaded = load(tmp_path, scripts.LEAKS_IN_STATE, config=SECRET)
    assert loaded.state["password"] == "$PASSWORD"  # noqa: S105 - a name
    assert "hunter2" not in repr(loader(tmp_path, scripts.GOOD))


def test_unset_variable_in_the_configuration_is_rejected(tmp_path: Path) -> None:
    config = {"nested": [{"password": "$NOWHERE"}]}
    with pytest.raises(SettingError, match=r"NOWHERE.*targets\.warehouse\.config"):
        load(tmp_path, scripts.GOOD, config=config)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (scripts.PRINTS_NO_JSON, "the target printed 'loaded 5 rows', which is not JSON"),
        (scripts.PRINTS_UNKNOWN_STATE, "which holds no STATE that was sent"),
        ("next(messages()); emit([1])", "the target printed '[1]', which is not a JSON object"),
        ("next(messages()); print('x' * 3_000_000)", "which is not JSON"),
    ],
)
def test_target_that_prints_an_unexpected_line_is_stopped(
    tmp_path: Path, body: str, problem: str
) -> None:
    error = str(error_of(tmp_path, body))
    assert "the target printed" in error
    assert problem in error
    assert len(error) < 800


@pytest.mark.parametrize("body", [scripts.NEVER_READS, scripts.HANGS_AND_IGNORES_SIGTERM])
def test_idle_target_is_stopped(tmp_path: Path, body: str) -> None:
    """A target with unread input that ignores SIGTERM is killed."""
    target = replace(loader(tmp_path, body, timeout=SHORT), grace=SHORT)
    before = {*psutil.Process().children()}
    with pytest.raises(TargetFailedError, match="was idle for 1 s and was stopped"):
        target.load(loading(tmp_path, records=100_000))
    assert {*psutil.Process().children()} <= before


def test_target_that_waits_for_records_is_not_idle() -> None:
    def slow_lines() -> Iterator[bytes]:
        Event().wait(1.5)  # like reading a large file
        yield b"line\n"

    with TargetRun(["cat"], timeout=timedelta(seconds=0.5)) as run:
        assert list(run.exchange(slow_lines())) == [b"line\n"]
        assert run.exit_code == 0


def test_repeated_older_state_is_ignored(tmp_path: Path) -> None:
    loaded, error = load_three(tmp_path, scripts.REPEATS_FIRST_STATE)
    assert (len(loaded), error) == (3, None)
    assert loaded[-1].state["bookmarks"]["orders"]["publish_number"] == 3


def test_target_with_much_output_on_stderr_does_not_block(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="batch_pipeline.targets"):
        target = loader(tmp_path, scripts.FLOODS_STDERR)
        loaded = target.load(loading(tmp_path, records=5_000))
    assert loaded.records == 5_000
    assert len(loaded.log) == 64 * 2**10
    assert loaded.log.splitlines()[-1].startswith("line 3999 xxx")
    assert caplog.messages[0] == f"line 0 {'x' * 100}"
    assert len(caplog.messages) == 4_000


def test_target_that_ends_with_unread_input_has_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(TargetFailedError, match="did not print the STATE"):
        loader(tmp_path, scripts.ENDS_EARLY).load(loading(tmp_path, records=100_000))


def test_child_process_of_an_ended_target_is_terminated(tmp_path: Path) -> None:
    target = replace(loader(tmp_path, scripts.LEAVES_CHILD_RUNNING), grace=SHORT)
    before = {child.pid for child in psutil.process_iter()}
    assert target.load(loading(tmp_path)).exit_code == 0
    started = [child for child in psutil.process_iter(["cmdline"]) if child.pid not in before]
    commands = [" ".join(child.info["cmdline"] or ()) for child in started]
    assert not [command for command in commands if "time.sleep(600)" in command]


def test_target_that_cannot_be_started_is_a_configuration_error(tmp_path: Path) -> None:
    for command in ("no-such-target", "/etc/hostname"):
        with pytest.raises(ConfigurationError, match="cannot be started") as caught:
            load(tmp_path, "", command=(command,))
        assert f"'{command}' cannot be started" in str(caught.value)
        assert "Nothing was sent." in str(caught.value)


def test_changed_part_file_does_not_end_the_input_of_the_target(tmp_path: Path) -> None:
    loadings = [loading(tmp_path, 1), loading(tmp_path, 2)]
    Path(tmp_path / "part-2.jsonl.gz").write_bytes(b"something else")
    body = scripts.GOOD + f"open({str(tmp_path / 'ended')!r}, 'w')"
    with pytest.raises(BatchDataError, match=r"a part file of batch .* cannot be sent"):
        list(loader(tmp_path, body).load_together(loadings))
    assert not (tmp_path / "ended").exists()


def test_configuration_file_is_private_and_removed(tmp_path: Path) -> None:
    body = scripts.GOOD + (
        "path = sys.argv[-1]\n"
        "log.write(json.dumps({'type': 'X', 'path': path, 'file': os.stat(path).st_mode & 0o777,"
        " 'folder': os.stat(os.path.dirname(path)).st_mode & 0o777}))\n"
    )
    load(tmp_path, body)
    config = read(tmp_path)[-1]
    assert (config["file"], config["folder"]) == (0o600, 0o700)
    assert not Path(config["path"]).parent.exists()
