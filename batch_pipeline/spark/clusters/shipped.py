"""Lets functions find, on a Connect server's executors, the archive that the session brought along.

A client cannot set variables of executors, so the function itself looks where Spark has unpacked
the archive, before anything of this package is imported there.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batch_pipeline.spark.clusters.archive_note import PACKED_FOLDER

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

MARK = "_batch_pipeline_packed"
TaskFunction = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def bring_along(session: "SparkSession", packed: Path) -> None:
    """Give a client's session the archive for its executors; it is sent to the server."""
    session.addArtifacts(f"{packed.as_uri()}#{PACKED_FOLDER}", archive=True)
    setattr(session, MARK, True)


def shipped(session: "SparkSession", function: TaskFunction) -> TaskFunction:
    """Give a function as it has to travel; the same one where the session brought nothing along."""
    return _Shipped(function) if getattr(session, MARK, False) else function


class _Shipped:
    """Travels as code that needs nothing of this package until it has found it."""

    def __init__(self, function: TaskFunction) -> None:
        self._function = function

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return self._function(batches)

    def __reduce__(self) -> tuple[Callable[[bytes], TaskFunction], tuple[bytes]]:
        from pyspark import cloudpickle

        pickled: bytes = cloudpickle.dumps(self._function)  # type: ignore[no-untyped-call]
        return _unpacking(), (pickled,)


def _unpacking() -> Callable[[bytes], TaskFunction]:
    name = PACKED_FOLDER

    def unpacked(pickled: bytes) -> Any:  # what is written here travels, and pyarrow must not
        import pickle
        import sys
        from pathlib import Path

        from pyspark import SparkFiles

        folder = str(Path(SparkFiles.getRootDirectory(), name))
        if folder not in sys.path:
            sys.path.insert(1, folder)
        return pickle.loads(pickled)  # noqa: S301 - as Spark does with all code

    return unpacked
