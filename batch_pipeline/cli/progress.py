"""The bar of long commands: what the logger `batch_pipeline.progress` hears, on a terminal only."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from batch_pipeline.cli.console import err, out, say, visible
from batch_pipeline.model.progress import log

if TYPE_CHECKING:
    from rich.progress import Progress

_WIDEST = 40
_BESIDE = 50  # columns for what stands beside the bar


class _Handler(logging.Handler):
    """Moves the progress bar."""

    def __init__(self, bar: "Progress") -> None:
        super().__init__(logging.INFO)
        self._bar = bar
        self._doing = "starting"
        self._task = bar.add_task(self._doing, total=None, count="")
        self._stream = ""
        self._is_stepwise = False

    def emit(self, record: logging.LogRecord) -> None:
        facts, text = record.__dict__, visible(record.getMessage())
        if "stream" in facts:
            self._stream = visible(facts["stream"])
            self._is_stepwise = facts["total"] is not None
            self._begin(text, facts["total"])
        elif "tasks" in facts:
            self._bar.update(self._task, description=text)
        elif "done" not in facts:
            self._move(self._bar.tasks[0].completed + 1)
            self._bar.console.print(f"  {text}", markup=False)
        elif not self._is_stepwise:
            if facts["done"] == 0:
                self._begin(text, facts["total"])
            self._move(facts["done"])

    def _begin(self, doing: str, total: int | None) -> None:
        self._bar.remove_task(self._task)
        self._doing = f"{self._stream}: {doing}"
        self._task = self._bar.add_task(self._doing, total=total, count="")

    def _move(self, done: float) -> None:
        total = self._bar.tasks[0].total
        count = f"{done:,.0f}" if total is None else f"{done:,.0f} of {total:,.0f}"
        self._bar.update(self._task, completed=done, count=count, description=self._doing)


def _bar() -> "Progress":
    # Imported here, for commands at no terminal and completions need not wait for it.
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=min(_WIDEST, max(4, err.width - _BESIDE))),
        TextColumn("{task.fields[count]}", markup=False),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        redirect_stdout=False,
    )


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show on standard error how far work is, until the block ends; nothing if it is no terminal.

    Gives what prints lines on standard output meanwhile.
    """
    if not err.is_terminal or err.is_dumb_terminal:
        yield say
        return
    bar = _bar()

    def say_above(text: str) -> None:
        if not out.is_terminal:
            say(text)
            return
        bar.stop()
        say(text)
        bar.start()

    handler, level, propagates = _Handler(bar), log.level, log.propagate
    with bar:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
        try:
            yield say_above
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagates
