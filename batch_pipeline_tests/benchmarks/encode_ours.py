"""The product in the encode benchmark: its encoder on a warm session, with known columns."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from batch_pipeline.model.encode_request import EncodeRequest, EncodeResult
from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.item import Item
from batch_pipeline.model.manifest import check_batch_conservation
from batch_pipeline.model.record_rules import LineageContext
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Source, Storage, Stream
from batch_pipeline.spark.encoder import SparkEncoder
from batch_pipeline.spark.session import (
    SparkSettings,
    close_session,
    open_session,
)
from batch_pipeline.spark.spark_job import warm_up
from batch_pipeline_tests.factories import stream
from batch_pipeline_tests.storage_roots import landed_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_WIDENINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductEncoder:
    """The encoder of the product on a warm session."""

    session: "SparkSession"

    def infer_schema(self, items: tuple[Item, ...], root: str, encoding: Encoding) -> RecordSchema:
        """Return the columns of items, inferred as by the encode step."""
        schema = RecordSchema(columns=())
        for _ in range(_MAX_WIDENINGS):
            result = self._encode(items, root, encoding, schema)
            if not result.misfits:
                return schema
            columns = (misfit.column for misfit in result.misfits)
            schema = schema.widened(columns, text_source=result.text_source)
        raise AssertionError(f"the columns of {items[0].file.location} do not converge")

    def encode(
        self, items: tuple[Item, ...], root: str, encoding: Encoding, schema: RecordSchema
    ) -> EncodeResult:
        """Encode items with known columns below a storage root."""
        result = self._encode(items, root, encoding, schema)
        assert not result.misfits, f"columns do not fit: {result.misfits}"
        check_batch_conservation(result.items, result.part_files)
        return result

    def _encode(
        self, items: tuple[Item, ...], root: str, encoding: Encoding, schema: RecordSchema
    ) -> EncodeResult:
        request = EncodeRequest(
            stream=_stream(root, encoding),
            items=items,
            schema=schema,
            stem="wide-1-a1",
            context=LineageContext(batch_key="1", attempt=1, started_at=datetime.now(UTC)),
        )
        result = SparkEncoder(lambda: self.session).encode(request)
        assert not any(item.bad_file for item in result.items), result.items[0]
        return result


@contextmanager
def open_encoder() -> Iterator[ProductEncoder]:
    """Open a session with two cores and a new home, and warm it up."""
    with tempfile.TemporaryDirectory(prefix="bp-") as home:
        session = open_session(SparkSettings(home=Path(home), master="local[2]"))
        try:
            warm_up(session)
            yield ProductEncoder(session=session)
        finally:
            close_session()


def _stream(root: str, encoding: Encoding) -> Stream:
    source, storage = Source(uri=root), Storage(root=root)
    return stream(source=source, encoding=encoding, storage=storage, key_properties=())


def items(paths: Sequence[Path]) -> tuple[Item, ...]:
    """Return files as registered items."""
    return tuple(
        Item(id=number, file=landed_file(path)) for number, path in enumerate(paths, start=1)
    )
