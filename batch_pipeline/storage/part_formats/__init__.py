"""Codecs of part files: one module per output format, named after it.

`jsonl` reads and writes lines; the module of a columnar format defines its `CODEC`, a `TableCodec`.
`model.encoding.PART_FORMATS` describes the formats for code that does not access the files.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from batch_pipeline.model.encoding import Encoding, Format

if TYPE_CHECKING:
    import pyarrow as pa


class TableWriter(Protocol):
    """An open part file of a columnar format."""

    def write(self, table: "pa.Table") -> None:
        """Write rows as one group; each column of the table is a single chunk."""

    def close(self) -> None:
        """Write the end of the file, but leave it open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCodec:
    """Reader and writer of one columnar format.

    `open_writer` starts a file in an object with `write`; it is passed the first group of rows.
    `read_batches` yields the rows of a file in the types that were written, limited to some columns
    and to a number of rows per batch; it raises a `pa.ArrowException` or an `OSError` if the file
    is damaged or has another format.

    `unsupported_rows` returns the rows with values that the format cannot represent, and the reason
    for each; the schema has the types of the columns in the file. The format adds `json_metadata`
    to the metadata of fields that hold JSON text.
    """

    open_writer: Callable[[Any, "pa.Table", Encoding], TableWriter]
    read_batches: Callable[[Path, Collection[str] | None, int], "Iterator[pa.RecordBatch]"]
    unsupported_rows: Callable[["pa.RecordBatch", "pa.Schema"], Mapping[int, str]] = (
        lambda _batch, _schema: {}
    )
    json_metadata: dict[str, str] = field(default_factory=dict)


def table_codec(file_format: Format) -> TableCodec:
    """Import and return the reader and writer of a columnar format, which loads pyarrow."""
    module = import_module(f"{__name__}.{file_format.value}")
    codec: TableCodec = module.CODEC
    return codec
