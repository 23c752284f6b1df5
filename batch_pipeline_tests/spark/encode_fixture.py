"""A landing folder, a storage root and a real encoder between them."""

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from batch_pipeline.model.encode import EncodeCallbacks, EncodeRequest, EncodeResult
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.item import Item, LandedFile, modified_at
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.record_rules import LineageContext
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Source, Storage, Stream
from batch_pipeline.spark.encoder import SparkEncoder
from batch_pipeline.spark.sessions.connect_server import SparkConnectServer
from batch_pipeline.spark.sessions.session import SparkSettings, close_session, open_session

MIB = 2**20
CONTEXT = LineageContext(
    batch_key="1-2", attempt=1, started_at=datetime(2026, 1, 31, 12, tzinfo=UTC)
)


@contextmanager
def session_of(kind: str, home: Path) -> Iterator[SparkSession]:
    """Open a session of two cores: `local` in this process, `connect` on a server."""
    if kind == "local":
        yield open_session(SparkSettings(home=home, master="local[2, 4]"))
        close_session()
        return
    conf = {"spark.master": "local[2]", "spark.connect.progress.reportInterval": "100ms"}
    with SparkConnectServer(home, conf=conf) as server:
        yield open_session(SparkSettings(home=home, remote=server.remote))
        close_session()


class EncodeRun:
    """A landing folder, a storage root and the encoder between them."""

    def __init__(self, folder: Path, session: SparkSession) -> None:
        self.landing = folder / "landing"
        self.root = folder / "batches"
        self.landing.mkdir()
        self.root.mkdir()
        self.encoder = SparkEncoder(lambda: session)
        self.items: list[Item] = []
        self.watch = EncodeCallbacks()
        self.stream = Stream(
            name="orders",
            source=Source(uri=to_uri(self.landing)),
            limits=Limits(max_weight=1, max_count=1),
            encoding=Encoding(format=Format.JSONL, compression=Compression.GZIP),
            storage=Storage(root=to_uri(self.root), prefix="p-"),
        )

    def land(self, data: bytes, *, ending: str = "csv") -> Path:
        """Write the next file."""
        path = self.landing / f"orders-{len(self.items) + 1:04d}.{ending}"
        path.write_bytes(data)
        self.register(path)
        return path

    def register(self, path: Path) -> None:
        """Make an item of a file as it is now."""
        status = path.stat()
        found = LandedFile(
            location=to_uri(path), size_bytes=status.st_size, modified_at=modified_at(status)
        )
        self.items.append(Item(id=len(self.items) + 1, file=found))

    def encode(self, **types: str) -> EncodeResult:
        """Encode all files with a schema given as name=type, and check that no record is lost."""
        return self.encode_as(RecordSchema.from_json(list(types.items())))

    def encode_as(self, schema: RecordSchema) -> EncodeResult:
        """Encode all files with a schema, and check that no record is lost."""
        result = self.encoder.encode(
            EncodeRequest(
                stream=self.stream,
                items=self.items,
                schema=schema,
                stem="orders-1",
                context=CONTEXT,
                watch=self.watch,
            )
        )
        result.check_conservation()
        assert [item.item_id for item in result.items] == [item.id for item in self.items]
        return result

    def settled(self) -> tuple[RecordSchema, EncodeResult]:
        """Encode all files as often as their schema asks for, as the encode step does."""
        schema = RecordSchema()
        for _ in range(4):
            result = self.encode_as(schema)
            if not result.misfits:
                return schema, result
            seen = [misfit.column for misfit in result.misfits]
            schema = schema.widened(seen, text_source=result.text_source)
        raise AssertionError("the schema does not settle")

    def files(self) -> list[str]:
        """List what is in the storage."""
        return sorted(path.name for path in self.root.rglob("*") if path.is_file())


def names(files: Sequence[PartFile]) -> list[str]:
    """Give the names of part files."""
    return [Path(to_path(part.uri)).name for part in files]


def records(files: Sequence[PartFile]) -> list[Any]:
    """Read gzipped JSON lines."""
    return [
        json.loads(line)
        for part in files
        for line in gzip.decompress(Path(to_path(part.uri)).read_bytes()).splitlines()
    ]
