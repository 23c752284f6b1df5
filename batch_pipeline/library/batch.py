"""The batch that a caller of the library works on, from its acquisition to its release."""

import json
import logging as log_records
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Concatenate, Never, ParamSpec, TypeVar

from batch_pipeline.domain.batch import Attempt, AttemptStatus
from batch_pipeline.domain.batch import Batch as PlannedBatch
from batch_pipeline.domain.errors import (
    BatchElsewhereError,
    BatchReleasedError,
    InvalidValueError,
    RetryableError,
)
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.seen import Seen
from batch_pipeline.inventory.meta.reflected_table import MetaItem
from batch_pipeline.inventory.work.attempts import FencedAttempts

_TRACEBACK_FRAMES = 5
_MAX_MESSAGE = 2_000
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
log = log_records.getLogger(__name__)


class Batch:
    """A batch that this process has acquired, and nobody else until it is released.

    Release it with `succeeded` or `failed`, let `process` do it, or use it as a context manager:
    leaving the block releases it as succeeded, an exception as failed. A batch that is forgotten
    is handed out again, as is one whose process dies.
    """

    def __init__(
        self,
        attempt: Attempt,
        attempts: FencedAttempts,
        read: Callable[[PlannedBatch], Sequence[MetaItem]],
        job_identifier: str | None,
    ) -> None:
        self._attempt = attempt
        self._attempts = attempts
        self._read = read
        self._rows: Sequence[MetaItem] | None = None
        self._mutex = threading.RLock()
        self._process_id = os.getpid()
        self._outcome: str | None = None
        self.job_identifier = job_identifier
        # Not at exit: when the process ends, the batch is free anyway.
        self._forgotten = weakref.finalize(self, attempts.heartbeat.abandon, attempt.token)
        self._forgotten.atexit = False

    @property
    def job(self) -> str:
        """The job that the batch belongs to."""
        return self._attempt.batch.job

    @property
    def id(self) -> int:
        """The batch's number in the inventory, the same for every attempt on it.

        It is `batch_id` in the view `batch_pipeline.inventory`, and what commands take as its name.
        """
        return self._attempt.batch.id

    @property
    def attempt_id(self) -> int:
        """The number of this attempt, which is `id` in the view `batch_pipeline.inventory`."""
        return self._attempt.id

    @property
    def id_range(self) -> IdRange:
        """The ids from first to last, both included; not each of them need be there."""
        return self._attempt.batch.id_range

    @property
    def weight(self) -> int:
        """What the items weighed when the batch was cut."""
        return self._attempt.batch.weight

    @property
    def count(self) -> int:
        """How many items there were when the batch was cut."""
        return self._attempt.batch.count

    @property
    def oversized(self) -> bool:
        """Whether a single item is heavier than the limit."""
        return self._attempt.batch.oversized

    @property
    def attempt(self) -> int:
        """Which attempt on the batch this is, counted from 1."""
        return self._attempt.number

    @property
    def rows(self) -> Sequence[MetaItem]:
        """The items with id and weight, in id order; read when first asked for.

        Raises:
            RetryableError: the meta table's database does not answer; ask again.
            ConfigurationError: the meta table cannot be read any more.
        """
        with self._mutex:
            if self._rows is None:
                self._rows = tuple(self._read(self._attempt.batch))
            return self._rows

    @property
    def items(self) -> list[Any]:
        """The item column's values in id order; read when first asked for.

        Raises:
            RetryableError: the meta table's database does not answer; ask again.
            ConfigurationError: the meta table cannot be read any more.
        """
        return [row.item for row in self.rows]

    @property
    def success(self) -> bool | None:
        """How the batch was released; None while it is not."""
        return None if self._outcome is None else self._outcome == "succeeded"

    @property
    def lost(self) -> bool:
        """Whether the batch was taken away, because its lease ran out or it was cancelled.

        Known from the last renewal, which is at most 15 s old. Nothing more can be released.
        """
        held = self._attempts.heartbeat.keeps(self._attempt.token)
        return self._outcome is None and not held

    def succeeded(self, result: object = None, logging: str | None = None) -> None:
        """Release the batch as done. `result` is anything that is JSON.

        Raises:
            InvalidValueError: the result is not JSON; the batch is not released.
            BatchReleasedError: it was released before.
            FencedError: the batch was taken away, and what was done does not count.
            RetryableError: the inventory does not answer; release it again.
        """
        plain = _as_json(result)
        with self._releasing("succeeded"):
            seen = None
            if self._rows is not None:
                weight = sum(row.weight for row in self._rows)
                seen = Seen.of((row.id for row in self._rows), weight=weight)
            try:
                self._attempts.succeed(self._attempt, result=plain, logging=logging, seen=seen)
            except RetryableError:
                # The commit may have happened and only its reply been lost: asking again tells.
                self._attempts.succeed(self._attempt, result=plain, logging=logging, seen=seen)

    def failed(
        self, error: object = None, logging: str | None = None, result: object = None
    ) -> None:
        """Release the batch as failed; it is tried again until `max_attempts` are used up.

        Of an exception, the type, the message and the innermost lines of the traceback are kept.
        `result` is anything that is JSON, and is kept with the attempt.

        Raises:
            InvalidValueError: the result is not JSON; the batch is not released.
            BatchReleasedError: it was released before.
            RetryableError: the inventory does not answer; release it again.
        """
        self._close(AttemptStatus.FAILED, _described(error), logging, _as_json(result))

    def release(
        self,
        success: bool,  # noqa: FBT001 - the call that users know
        result: object = None,
        logging: str | None = None,
    ) -> None:
        """Release the batch as done or as failed, with a result and a text of your own."""
        if success:
            self.succeeded(result=result, logging=logging)
        else:
            self.failed(logging=logging, result=result)

    def process(
        self,
        func: "Callable[Concatenate[list[Any], _Given], _Result]",
        *args: _Given.args,
        **kwargs: _Given.kwargs,
    ) -> _Result | None:
        """Call a function with the items and the arguments, release the batch, give what it gave.

        What it returns becomes the batch's result if it is JSON. An exception releases the batch as
        failed and is raised again. If none of the items is left in the meta table, the function is
        not called: the batch is released as done, and None is returned.
        """
        with self:
            items = self.items
            if not items:
                log.warning("%r: none of its %d items is left; nothing is done", self, self.count)
                return None
            returned = func(items, *args, **kwargs)
            if self._outcome is None:
                self.succeeded(returned if _is_json(returned) else None)
        return returned

    def __enter__(self) -> "Batch":
        self._check_ours()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._outcome is not None:
            return
        if error is None:
            self.succeeded()
        elif os.getpid() == self._process_id:
            self._give_up(error)

    def __reduce__(self) -> Never:
        raise BatchElsewhereError(self.job, self._attempt.batch.label, self._process_id)

    def __repr__(self) -> str:
        state = self._outcome or ("lost" if self.lost else "running")
        return f"<Batch {self.job} {self.id_range} attempt {self.attempt}, {state}>"

    def _give_up(self, error: BaseException) -> None:
        # What passes by itself, or an interrupt, is not the data's fault.
        blameless = isinstance(error, RetryableError) or not isinstance(error, Exception)
        status = AttemptStatus.ABANDONED if blameless else AttemptStatus.FAILED
        try:
            self._close(status, _described(error), None)
        except RetryableError as failure:
            # Why the work failed matters more; without a renewal the batch is free in a while.
            log.warning("%r was not released, its lease runs out: %s", self, failure)
            self._attempts.heartbeat.abandon(self._attempt.token)

    def _close(
        self, status: AttemptStatus, error: str, logging: str | None, result: object = None
    ) -> None:
        counts, fail = status is AttemptStatus.FAILED, self._attempts.fail
        with self._releasing(status.value):
            if not fail(
                self._attempt, error, status, counts=counts, result=result, logging=logging
            ):
                log.warning("%r had been published already, which stays", self)

    @contextmanager
    def _releasing(self, outcome: str) -> Iterator[None]:
        """Let one release through at a time, and none after one that came to its end."""
        with self._mutex:
            self._check_ours()
            if self._outcome is not None:
                label = self._attempt.batch.label
                raise BatchReleasedError(self.job, label, self.attempt, self._outcome)
            yield
            self._outcome = outcome
            self._forgotten.detach()

    def _check_ours(self) -> None:
        if os.getpid() != self._process_id:
            raise BatchElsewhereError(self.job, self._attempt.batch.label, self._process_id)


def _as_json(value: object) -> Any:
    """Give a value as JSON would bring it back.

    Raises:
        InvalidValueError: it is not JSON that the inventory can keep.
    """
    if value is None:
        return None
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        problem = str(error) or type(error).__name__
        raise InvalidValueError("result", type(value).__name__, f"JSON ({problem})") from error
    plain = json.loads(text)
    if "\\u0000" in text and _holds_nul(plain):
        raise InvalidValueError("result", type(value).__name__, "JSON without NUL characters")
    return plain


def _holds_nul(plain: object) -> bool:
    match plain:
        case str():
            return "\0" in plain
        case list():
            return any(_holds_nul(one) for one in plain)
        case dict():
            return any(_holds_nul(one) for pair in plain.items() for one in pair)
    return False


def _is_json(value: object) -> bool:
    try:
        _as_json(value)
    except InvalidValueError:
        return False
    return True


def _described(error: object) -> str:
    if error is None:
        return "failed without a reason"
    if not isinstance(error, BaseException):
        return str(error)
    headline = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE].rstrip(": ")
    frames = traceback.format_tb(error.__traceback__)[-_TRACEBACK_FRAMES:]
    return "\n".join([headline, "".join(frames).rstrip()]).rstrip()
