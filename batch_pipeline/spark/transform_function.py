"""Finds a user's transform, calls it, and says of its errors what happened and where.

No frame is made or run here.
"""

import importlib
import re
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batch_pipeline.domain.errors import TransformError, TransformUnusableError
from batch_pipeline.domain.stream import Stream
from batch_pipeline.spark.engine_errors import reason_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FRAME = re.compile(r'File "([^"]+)", line ([0-9]+), in (\S+)')
_NOT_THE_USERS = ("pyspark", "py4j", "pandas", "pyarrow", "batch_pipeline", "concurrent")


class Transform:
    """The function that a stream file names.

    Raises:
        TransformUnusableError: there is no such function.
    """

    def __init__(self, stream: Stream, batch_key: str) -> None:
        self._stream = stream.name
        self._name = stream.transform or ""
        self._batch_key = batch_key
        self._function = self._found()

    def applied(self, frame: "DataFrame") -> "DataFrame":
        """Call the function; what Spark raises in it is not judged here.

        Raises:
            TransformError: it failed.
            TransformUnusableError: it gives something else than a DataFrame.
        """
        try:
            given = self._function(frame)
        except Exception as error:
            if _is_of_spark(error):
                raise
            raise self.error(error) from error
        if isinstance(given, type(frame)):
            return given
        raise self._unusable(f"it gave {type(given).__name__}, not a DataFrame")

    def error(self, error: Exception) -> TransformError:
        """Make the error that says what went wrong, with the user's own line."""
        reason = reason_of(error)
        if not _is_of_spark(error):
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return self.refused(reason, _place(error))

    def refused(self, reason: str, place: str | None = None) -> TransformError:
        """Make the error that says that what the function gave cannot be used."""
        return TransformError(self._stream, self._name, self._batch_key, reason, place)

    def _found(self) -> "Callable[[DataFrame], Any]":
        module, colon, name = self._name.partition(":")
        if not (module and colon and name.isidentifier()):
            raise self._unusable("it is not written like package.module:function")
        try:
            function = getattr(importlib.import_module(module), name, None)
        except Exception as error:
            told = f"{module} cannot be imported: {type(error).__name__}: {error}"
            raise self._unusable(told) from error
        if function is None:
            raise self._unusable(f"{module} has no {name}")
        if not callable(function):
            raise self._unusable(f"{name} is of type {type(function).__name__}, not a function")
        found: Callable[[DataFrame], Any] = function
        return found

    def _unusable(self, reason: str) -> TransformUnusableError:
        return TransformUnusableError(self._stream, self._name, reason)


def _is_of_spark(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}


def _place(error: Exception) -> str | None:
    """Find the innermost line of the user's that an error tells of."""
    in_worker = [(file, int(line), name) for file, line, name in _FRAME.findall(str(error))]
    on_driver = [
        (frame.filename, frame.lineno or 0, frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    for frames in (in_worker, on_driver):
        for file, line, name in reversed(frames):
            if _is_the_users(Path(file).parts):
                return f"{Path(file).name}:{line} in {name}"
    with suppress(Exception):  # not every error of Spark has a context, or a call in it
        contexts: Any = error.getQueryContext()  # type: ignore[attr-defined]
        file, _, line = contexts[0].callSite().rpartition(":")
        return f"{Path(file).name}:{line}" if file else None
    return None


def _is_the_users(parts: Iterable[str]) -> bool:
    return not any(part in _NOT_THE_USERS or part.startswith("<") for part in parts)
