"""Cancellation flags, and the tasks that they stop."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from batch_pipeline.encode.cancellation import (
    CancellationCheck,
    CancellationFlag,
    TaskCancelledError,
)
from batch_pipeline.encode.task import encode_items
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Storage
from batch_pipeline_tests.encode.task_fixture import TaskFixture


def clock_of(*times: float) -> Callable[[], float]:
    """Return a clock that returns these times, one per call."""
    remaining = iter(times)
    return lambda: next(remaining)


@pytest.fixture
def flag(tmp_path: Path) -> CancellationFlag:
    """The flag of one encode in an empty storage."""
    return CancellationFlag.of(Storage(root=to_uri(tmp_path), prefix="p-"), "orders-1-2-a1", "0a0b")


def test_check_of_cancelled_encode_raises(flag: CancellationFlag) -> None:
    check = CancellationCheck(flag, clock_of(0, 0, 0.4, 0.6, 0.6))
    check.check()
    flag.set()
    check.check()

    with pytest.raises(TaskCancelledError):
        check.check()


def test_check_without_a_flag_does_nothing(flag: CancellationFlag) -> None:
    flag.set()
    flag.clear()

    CancellationCheck(flag).check()
    CancellationCheck(None).check()


def test_flag_in_a_missing_storage_cannot_be_set(tmp_path: Path) -> None:
    missing = CancellationFlag.of(Storage(root=to_uri(tmp_path / "missing")), "orders-1", "0a0b")

    assert missing.set() is False
    assert missing.is_set() is False
    missing.clear()


def test_task_of_cancelled_encode_leaves_no_files(flag: CancellationFlag, tmp_path: Path) -> None:
    task = TaskFixture(tmp_path)
    task.land(b"a\n1\n")
    flag.set()

    with pytest.raises(TaskCancelledError):
        encode_items(replace(task.spec(a="integer"), cancellation_flag=flag), execution="00c0ffee")

    assert task.files() == []
