"""The batch that a caller of the library works on, from acquisition to release."""

import json
import logging as log_records
import os
import re
import threading
import traceback
import weakref
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Never, ParamSpec, TypeVar

from batch_pipeline.inventory.attempts import FencedAttempts
from batch_pipeline.inventory.meta_tables.reflected_table import MetaItem
from batch_pipeline.model.batch import Attempt, AttemptStatus, IdRange
from batch_pipeline.model.batch import Batch as PlannedBatch
from batch_pipeline.model.errors import (
    BatchReleasedError,
    ConfigurationError,
    InvalidValueError,
    RetryableError,
    repeat_once,
)
from batch_pipeline.model.item import ItemIdSet

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # in JSON, where a literal backslash is doubled
_TRACEBACK_FRAMES = 5
_MAX_MESSAGE = 2_000
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
log = log_records.getLogger(__name__)


class Batch:
    """A batch that only this process holds until it is released.

    Release it with `succeeded`, `failed` or `process`, or use it as a context manager: leaving the
    block releases it as succeeded, an exception as failed. If the object is garbage-collected
    first, or its process dies, the batch is handed out again.
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
        # Not at exit: when the process ends, the batch becomes free anyway.
        self._finalizer = weakref.finalize(self, attempts.heartbeat.release_later, attempt.token)
        self._finalizer.atexit = False

    @property
    def job(self) -> str:
        """The job that the batch belongs to."""
        return self._attempt.batch.job

    @property
    def id(self) -> int:
        """The batch's number in the inventory, the same for every attempt on it.

        It is `batch_id` in the view `batch_pipeline.inventory` and identifies the batch in
        commands.
        """
        return self._attempt.batch.id

    @property
    def attempt_id(self) -> int:
        """The number of this attempt, which is `id` in the view `batch_pipeline.inventory`."""
        return self._attempt.id

    @property
    def id_range(self) -> IdRange:
        """The range of ids, both ends included; it may have gaps."""
        return self._attempt.batch.id_range

    @property
    def weight(self) -> int:
        """The weight of the items when the batch was cut."""
        return self._attempt.batch.weight

    @property
    def count(self) -> int:
        """The number of items when the batch was cut."""
        return self._attempt.batch.count

    @property
    def oversized(self) -> bool:
        """Whether a single item is heavier than the limit."""
        return self._attempt.batch.oversized

    @property
    def attempt(self) -> int:
        """The number of this attempt on the batch, from 1."""
        return self._attempt.number

    @property
    def rows(self) -> Sequence[MetaItem]:
        """The items with id and weight, in id order; read on first access.

        Raises:
            RetryableError: the meta table's database does not answer; try again.
            ConfigurationError: the meta table can no longer be read.
        """
        with self._mutex:
            if self._rows is None:
                self._rows = tuple(self._read(self._attempt.batch))
            return self._rows

    @property
    def items(self) -> list[Any]:
        """The values of the item column in id order; read on first access.

        Raises:
            RetryableError: the meta table's database does not answer; try again.
            ConfigurationError: the meta table can no longer be read.
        """
        return [row.item for row in self.rows]

    @property
    def success(self) -> bool | None:
        """Whether the batch was released as succeeded; None until it is released."""
        return None if self._outcome is None else self._outcome == "succeeded"

    @property
    def lost(self) -> bool:
        """Whether the batch was lost because its lease expired or it was cancelled.

        This is the state at the last renewal, at most 15 s ago. A lost batch cannot be released. If
        the inventory does not answer until the lease expires, the batch counts as lost, too:
        another worker may have it, and it can only be released otherwise.
        """
        is_held = self._attempts.heartbeat.is_current(self._attempt.token)
        return self._outcome is None and not is_held

    def succeeded(self, result: object = None, logging: str | None = None) -> None:
        """Release the batch as succeeded. `result` is any JSON value.

        Raises:
            InvalidValueError: the result is not JSON; the batch is not released.
            BatchReleasedError: the batch was released before.
            FencedError: the batch was lost, and its result is discarded.
            RetryableError: the inventory does not answer; release it again.
        """
        json_result = _to_json(result)
        with self._release_once("succeeded"):
            item_ids = None
            if self._rows is not None:
                weight = sum(row.weight for row in self._rows)
                item_ids = ItemIdSet.of((row.id for row in self._rows), weight=weight)
            succeed = self._attempts.succeed
            repeat_once(
                partial(succeed, self._attempt, result=json_result, logging=logging, seen=item_ids)
            )

    def failed(
        self, error: object = None, logging: str | None = None, result: object = None
    ) -> None:
        """Release the batch as failed; it is retried until `max_attempts` are used up.

        Type, message and the innermost traceback lines of an exception are stored. `result` is any
        JSON value to store with the attempt.

        Raises:
            InvalidValueError: the result is not JSON; the batch is not released.
            BatchReleasedError: the batch was released before.
            RetryableError: the inventory does not answer; release it again.
        """
        self._close(AttemptStatus.FAILED, _error_text(error), logging, _to_json(result))

    def release(
        self,
        success: bool,  # noqa: FBT001 - the signature that users know
        result: object = None,
        logging: str | None = None,
    ) -> None:
        """Release the batch as succeeded or failed, with a result and a log text."""
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
        """Call a function with the items and the arguments, release the batch, return the result.

        The return value is stored as the batch's result if it is JSON. An exception releases the
        batch as failed and is raised again. If no item is left in the meta table, the function is
        not called, the batch is released as succeeded, and None is returned.

        Raises:
            InvalidValueError: the function returns a coroutine or a generator, so that its work is
                not done; the batch is released as failed.
        """
        with self:
            items = self.items
            if not items:
                log.warning("%r: none of its %d items is left; nothing to do", self, self.count)
                return None
            returned = func(items, *args, **kwargs)
            if isinstance(returned, Awaitable | Generator | AsyncGenerator):
                if isinstance(returned, Coroutine | Generator):
                    returned.close()
                expected = "a function that has done its work when it returns"
                raise InvalidValueError("func", func, expected)
            if self._outcome is None:
                try:
                    self.succeeded(returned)
                except InvalidValueError:  # it is not JSON
                    self.succeeded()
        return returned

    def __enter__(self) -> "Batch":
        self._check_process()
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
            self._release_failed(error)

    def __reduce__(self) -> Never:
        raise _other_process_error(self.job, self._attempt.batch.label, self._process_id)

    def __repr__(self) -> str:
        state = self._outcome or ("lost" if self.lost else "running")
        return f"<Batch {self.job} {self.id_range} attempt {self.attempt}, {state}>"

    def _release_failed(self, error: BaseException) -> None:
        # A temporary error or an interrupt does not count as an attempt.
        is_transient = isinstance(error, RetryableError) or not isinstance(error, Exception)
        status = AttemptStatus.ABANDONED if is_transient else AttemptStatus.FAILED
        try:
            self._close(status, _error_text(error), None)
        except RetryableError as release_error:
            # Keep the original error; without renewals the lease expires.
            log.warning("%r was not released; its lease will expire: %s", self, release_error)
            self._attempts.heartbeat.release_later(self._attempt.token)

    def _close(
        self, status: AttemptStatus, error: str, logging: str | None, result: object = None
    ) -> None:
        counts = status is AttemptStatus.FAILED
        with self._release_once(status.value):
            is_unpublished = self._attempts.fail(
                self._attempt, error, status, counts=counts, result=result, logging=logging
            )
            if not is_unpublished:
                log.warning("%r was already published and stays published", self)

    @contextmanager
    def _release_once(self, outcome: str) -> Iterator[None]:
        """Allow one release at a time, and none after a completed one."""
        with self._mutex:
            self._check_process()
            if self._outcome is not None:
                label = self._attempt.batch.label
                raise BatchReleasedError(self.job, label, self.attempt, self._outcome)
            yield
            self._outcome = outcome
            self._finalizer.detach()

    def _check_process(self) -> None:
        if os.getpid() != self._process_id:
            raise _other_process_error(self.job, self._attempt.batch.label, self._process_id)


def _to_json(value: object) -> Any:
    """Return a value after a round trip through JSON.

    Raises:
        InvalidValueError: the value is not JSON that the inventory can store.
    """
    if value is None:
        return None
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        problem = str(error) or type(error).__name__
        raise InvalidValueError("result", type(value).__name__, f"JSON ({problem})") from error
    if _NUL.search(text):
        raise InvalidValueError("result", type(value).__name__, "JSON without NUL characters")
    return json.loads(text)


def _error_text(error: object) -> str:
    if error is None:
        return "failed without a reason"
    if not isinstance(error, BaseException):
        return str(error)
    headline = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE].rstrip(": ")
    frames = traceback.format_tb(error.__traceback__)[-_TRACEBACK_FRAMES:]
    return "\n".join([headline, "".join(frames).rstrip()]).rstrip()


def _other_process_error(job: str, label: str, process_id: int) -> ConfigurationError:
    return ConfigurationError(
        f"{job}: batch {label} belongs to process {process_id} and can be "
        f"neither copied, pickled nor released elsewhere. Its state is unchanged. Pass its items "
        f"on, and release it where it was acquired; or acquire it in the process that works on it."
    )
