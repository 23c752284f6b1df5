"""The product as the encode benchmark runs it: a warm session, its encoder, known columns."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from batch_pipeline.domain.encode import EncodeRequest, EncodeResult
from batch_pipeline.domain.encoding import Encoding
from batch_pipeline.domain.item import FoundFile, Item, modified_at
from batch_pipeline.domain.location import to_uri
from batch_pipeline.domain.manifest import check_batch_conservation
from batch_pipeline.domain.planning import Limits
from batch_pipeline.domain.record_rules import LineageContext
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stream import Source, Storage, Stream
from batch_pipeline.spark.encoder import SparkEncoder
from batch_pipeline.spark.sessions.session import (
    SparkSettings,
    close_session,
    open_session,
    warm_up,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_WIDENINGS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """An open session, with the seconds until it was open and until its first job was done."""

    session: "SparkSession"
    opened_seconds: float
    warm_seconds: float

    def learn(
        self, paths: Sequence[Path], folder: Path, encoding: Encoding
    ) -> tuple[RecordSchema, float]:
        """Find the columns of files as the encode step does; give also the seconds of this."""
        schema = RecordSchema(columns=())
        started = time.perf_counter()
        for _ in range(_MAX_WIDENINGS):
            passed = time.perf_counter() - started
            result = self._encode(items(paths), to_uri(folder), encoding, schema)
            if not result.misfits:
                return schema, passed
            columns = (misfit.column for misfit in result.misfits)
            schema = schema.widened(columns, text_source=result.text_source)
        raise AssertionError(f"the columns of {paths[0]} do not settle")

    def encode(
        self, paths: Sequence[Path], folder: Path, encoding: Encoding, schema: RecordSchema
    ) -> EncodeResult:
        """Encode files, whose columns are known, into a folder."""
        return self.encode_items(items(paths), to_uri(folder), encoding, schema)

    def encode_items(
        self, found: tuple[Item, ...], root: str, encoding: Encoding, schema: RecordSchema
    ) -> EncodeResult:
        """Encode items, whose columns are known, below a storage root."""
        result = self._encode(found, root, encoding, schema)
        assert not result.misfits, f"columns do not fit: {result.misfits}"
        check_batch_conservation(result.items, result.part_files)
        return result

    def _encode(
        self, found: tuple[Item, ...], root: str, encoding: Encoding, schema: RecordSchema
    ) -> EncodeResult:
        request = EncodeRequest(
            stream=stream(root, encoding),
            items=found,
            schema=schema,
            stem="wide-1-a1",
            context=LineageContext(batch_key="1", attempt=1, started_at=datetime.now(UTC)),
        )
        result = SparkEncoder(lambda: self.session).encode(request)
        assert not any(item.bad_file for item in result.items), result.items[0]
        return result


@contextmanager
def opened() -> Iterator[Ours]:
    """Open a session of two cores with a home of its own, and warm it up."""
    with tempfile.TemporaryDirectory(prefix="bp-") as home:
        started = time.perf_counter()
        session = open_session(SparkSettings(home=Path(home), master="local[2]"))
        opened_seconds = time.perf_counter() - started
        try:
            warm_up(session)
            warm_seconds = time.perf_counter() - started
            yield Ours(session=session, opened_seconds=opened_seconds, warm_seconds=warm_seconds)
        finally:
            close_session()


def stream(root: str, encoding: Encoding) -> Stream:
    """Describe a stream that is written below a storage root."""
    return Stream(
        name="wide",
        source=Source(uri=root),
        limits=Limits(max_weight=1, max_count=1),
        encoding=encoding,
        storage=Storage(root=root),
    )


def items(paths: Sequence[Path]) -> tuple[Item, ...]:
    """Describe files as registered items."""
    return tuple(
        Item(id=number, file=_found(path, path.stat().st_size))
        for number, path in enumerate(paths, start=1)
    )


def _found(path: Path, size_bytes: int) -> FoundFile:
    modified = modified_at(path.stat())
    return FoundFile(location=to_uri(path), size_bytes=size_bytes, modified_at=modified)
