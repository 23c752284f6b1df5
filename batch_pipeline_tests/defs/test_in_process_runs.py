"""Dagster runs in the process of a command: Ctrl-C, and batches selected for reprocessing."""

import logging
import signal
import weakref
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.cli import resend_lost_interrupts
from batch_pipeline.defs.in_process_runs import run_in_process, select_batches
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline_tests.defs.defs_fixture import KEYS, DefsHarness, empty_instance
from batch_pipeline_tests.seeds import everything, publish


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def _interrupt_and_raise_another_error() -> None:
    try:
        _interrupt()
    finally:
        raise RuntimeError("masks the interrupt")


def _run(step: Callable[[], Any], at_end: Callable[[], Any]) -> None:
    class Log(logging.Logger):
        def handle(self, record: logging.LogRecord) -> None:
            if "RUN_SUCCESS" in record.getMessage():
                at_end()

    @dg.logger({"log_level": str})
    def console(_: dg.InitLoggerContext) -> logging.Logger:
        return Log("console")

    @dg.op
    def one() -> None:
        step()

    @dg.job(logger_defs={"console": console})
    def job() -> None:
        one()

    run_in_process(job, empty_instance(), tags={})


def _nothing() -> None: ...


@pytest.mark.parametrize(
    ("step", "at_end"),
    [
        (_interrupt, _nothing),
        (_interrupt_and_raise_another_error, _nothing),
        (_nothing, _interrupt),  # Dagster discards interrupts after the last step
    ],
)
def test_interrupt_of_a_run_raises(step: Callable[[], Any], at_end: Callable[[], Any]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        _run(step, at_end)
    assert signal.getsignal(signal.SIGINT) is before
    _run(_nothing, _nothing)  # the interrupt is not raised again
    assert signal.set_wakeup_fd(-1) == -1


def test_interrupt_in_a_callback_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python prints and ignores exceptions that a callback of a weak reference raises."""
    monkeypatch.setattr("sys.unraisablehook", None)  # restores pytest's own at the end
    resend_lost_interrupts()
    steps: list[object] = []

    class Referent: ...

    def step() -> None:
        referent = Referent()
        reference = weakref.ref(referent, lambda _: _interrupt())
        del referent
        steps.append(reference)
        signal.sigtimedwait([signal.SIGUSR1], 30)
        steps.append("continued")

    with pytest.raises(KeyboardInterrupt):
        _run(step, _nothing)
    assert steps[1:] == []
    assert "Traceback" not in capsys.readouterr().err


@pytest.fixture
def harness(harness: DefsHarness) -> DefsHarness:
    """Four batches; the first three are published."""
    for status in harness.database.batches.statuses("orders")[:3]:
        publish(harness.database, status.batch)
    return harness


def _selected(harness: DefsHarness, **options: Any) -> dict[str, str]:
    """Return the selected partitions with the keys of their published batches."""
    before = everything(harness.database)
    selected = select_batches(
        harness.pipeline, harness.stream, harness.instance, **options
    ).partitions
    assert everything(harness.database) == before
    return {key: status.batch.key for key, status in selected.items()}


def test_default_selection_is_all_published_batches(harness: DefsHarness) -> None:
    """Batches whose partitions are not added to Dagster yet are included. Keys limit it."""
    assert _selected(harness) == {key: key for key in KEYS[:3]}
    assert _selected(harness, keys=[KEYS[2], KEYS[0]]) == {KEYS[0]: KEYS[0], KEYS[2]: KEYS[2]}


def test_published_late_batches_are_selected(harness: DefsHarness) -> None:
    first, second = harness.plan_late(2, 3)
    publish(harness.database, harness.database.batches.batch("orders", second))
    late = {second: "00000003-00000003"}
    assert _selected(harness, keys=[second]) == late
    assert _selected(harness) == {key: key for key in KEYS[:3]} | late
    with pytest.raises(InvalidValueError, match=first):
        _selected(harness, keys=[first])


def test_key_of_unpublished_or_unknown_batch_is_rejected(harness: DefsHarness) -> None:
    for key in (KEYS[3], "00000099-00000099", "orders"):
        with pytest.raises(InvalidValueError, match=key):
            _selected(harness, keys=[KEYS[0], key])


def test_time_range_includes_its_start_and_excludes_its_end(harness: DefsHarness) -> None:
    first, second, third, _ = harness.database.batches.statuses("orders")
    since, until = second.finished_at, third.finished_at
    assert _selected(harness, until=since) == {KEYS[0]: KEYS[0]}
    assert _selected(harness, since=since) == {key: key for key in KEYS[1:3]}
    assert _selected(harness, since=since, until=until) == {KEYS[1]: KEYS[1]}
    assert _selected(harness, since=since, until=until, keys=[KEYS[0]]) == {}
    with pytest.raises(InvalidValueError, match="a time after `since`"):
        _selected(harness, since=since, until=first.finished_at)
