"""Logs of servers that run for ever: bounded, without anybody who writes noticing."""

from pathlib import Path

import pytest

from batch_pipeline.defs.instance.bounded_log import bound


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of ten bytes."""
    log = tmp_path / "dagster.log"
    log.write_text("123456789\n")
    return log


def test_log_up_to_the_limit_stays(log: Path) -> None:
    """Expect nothing to be moved, and no other file."""
    assert not bound(log, 10)
    assert [path.name for path in log.parent.iterdir()] == ["dagster.log"]


def test_log_beyond_the_limit_goes_on_empty_for_who_has_it_open(log: Path) -> None:
    """Expect all lines in one of two files, the old ones aside."""
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old\n")
        assert bound(log, 10)
        writer.write(b"new\n")
        assert log.read_text() == "new\n"
        assert (log.parent / "dagster.old.log").read_text() == "123456789\nold\n"


def test_log_that_grows_again_takes_the_place_of_what_was_aside(log: Path) -> None:
    """Expect two files, however often the limit is reached."""
    for line in ("first", "second", "third"):
        log.write_text(line)
        assert bound(log, 4)
    assert {path.name: path.read_text() for path in log.parent.iterdir()} == {
        "dagster.log": "",
        "dagster.old.log": "third",
    }


def test_log_is_aside_with_the_mode_that_it_had(log: Path) -> None:
    """Expect nobody to read the old lines who could not read the new ones."""
    log.chmod(0o600)
    assert bound(log, 4)
    assert (log.parent / "dagster.old.log").stat().st_mode & 0o777 == 0o600


def test_log_that_cannot_be_put_aside_stays_as_it_is(log: Path) -> None:
    """Expect no line to be lost for want of a place, and no draft to be left."""
    (log.parent / "dagster.old.log").mkdir()
    assert not bound(log, 4)
    assert log.read_text() == "123456789\n"
    assert not (log.parent / "dagster.new.log").exists()


def test_log_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    """Expect the first start to find nothing to do."""
    assert not bound(tmp_path / "dagster.log")
