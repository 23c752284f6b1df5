"""Ctrl-C during a Dagster run in the process of a command."""

import logging
import signal
import weakref
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.cli import resend_lost_interrupts
from batch_pipeline.defs.in_process_runs import run_in_process


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

    with dg.DagsterInstance.ephemeral() as instance:
        run_in_process(job, instance, tags={})


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
