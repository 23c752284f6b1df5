"""Bytes of part files: one module per output format, named like it.

`jsonl` reads and writes lines; the module of a columnar format has its `CODEC`, a `TableCodec`.
`model.encoding.PART_FORMATS` describes the formats for everybody who does not touch the files.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Protocol

from batch_pipeline.model.encoding import Encoding, Format

if TYPE_CHECKING:
    import pyarrow as pa


class TableWriter(Protocol):
    """An open part file of a columnar format."""

    def write(self, table: "pa.Table") -> None:
        """Write rows as one group; each column of the table is a single chunk."""

    def close(self) -> None:
        """Write the end of the file, which stays open."""


class TableCodec(ABC):
    """Reader and writer of one columnar format.

    `json_metadata` is what the format adds to the metadata of fields that hold JSON text.
    """

    json_metadata: ClassVar[dict[str, str]] = {}

    @abstractmethod
    def open_writer(self, file: Any, first: "pa.Table", encoding: Encoding) -> TableWriter:
        """Start a file in an object with `write`; `first` is the first group of rows."""

    @abstractmethod
    def read_batches(
        self, path: Path, columns: Collection[str] | None, max_rows: int
    ) -> Iterator["pa.RecordBatch"]:
        """Yield the rows of a file, with at most these columns, in the types that were written.

        Raises:
            pa.ArrowException: the file is damaged or has another format.
            OSError: the file is damaged or cannot be read.
        """

    @abstractmethod
    def count_rows(self, file: BinaryIO) -> int:
        """Return the number of rows of a file, without decoding more than is needed.

        Raises:
            pa.ArrowException: the file is damaged or has another format.
            OSError: the file is damaged or cannot be read.
        """

    def unsupported_rows(
        self,
        batch: "pa.RecordBatch",
        schema: "pa.Schema",
    ) -> Mapping[int, str]:
        """Return the rows with values that the format cannot hold, and the reason for each.

        `schema` has the types of the columns in the file.
        """
        return {}


def table_codec(file_format: Format) -> TableCodec:
    """Import and return the reader and writer of a columnar format, which loads pyarrow."""
    module = import_module(f"{__name__}.{file_format.value}")
    codec: TableCodec = module.CODEC
    return codec
