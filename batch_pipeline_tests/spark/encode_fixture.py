"""A landing folder, a storage root and a real encoder."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from batch_pipeline.model.encode_request import EncodeCallbacks, EncodeRequest, EncodeResult
from batch_pipeline.model.item import Item
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Source, Storage, Stream
from batch_pipeline.spark import task_planning
from batch_pipeline.spark.encoder import SparkEncoder
from batch_pipeline.spark.session import SparkSettings, close_session, open_session
from batch_pipeline.spark.spark_connect import SparkConnectServer
from batch_pipeline_tests.encode.landed_files import parquet
from batch_pipeline_tests.factories import CONTEXT, stream
from batch_pipeline_tests.storage_roots import landed_file

MIB = 2**20
LARGE_TASKS, LARGE_TASK_RECORDS = 12, 4_000
LARGE_SCHEMA = RecordSchema.from_json(
    [("id", "integer"), *((f"c{number}", "integer") for number in range(100))]
)

# Without `--long`, regression/test_published_manifests.py covers Connect with a transform.
each_session = pytest.mark.parametrize(
    "session", ["local", pytest.param("connect", marks=pytest.mark.long)], indirect=True
)


@contextmanager
def session_of(kind: str, home: Path) -> Iterator[SparkSession]:
    """Open a session of two cores: `local` in this process, or `connect` on a server."""
    if kind == "local":
        yield open_session(SparkSettings(home=home, master="local[2, 4]"))
        close_session()
        return
    conf = {"spark.master": "local[2]", "spark.connect.progress.reportInterval": "100ms"}
    with SparkConnectServer(home, conf=conf) as server:
        yield open_session(SparkSettings(home=home, remote=server.remote))
        close_session()


def encode_items(
    session: SparkSession,
    stream: Stream,
    items: Sequence[Item],
    schema: RecordSchema,
    watch: EncodeCallbacks,
) -> EncodeResult:
    """Encode items and check record conservation."""
    request = EncodeRequest(
        stream=stream, items=items, schema=schema, stem="orders-1", context=CONTEXT, watch=watch
    )
    result = SparkEncoder(lambda: session).encode(request)
    result.check_conservation()
    assert [item.item_id for item in result.items] == [item.id for item in items]
    return result


class EncodeRun:
    """A landing folder, a storage root and an encoder."""

    def __init__(self, folder: Path, session: SparkSession) -> None:
        self.landing = folder / "landing"
        self.root = folder / "batches"
        self.landing.mkdir()
        self.root.mkdir()
        self.session = session
        self.items: list[Item] = []
        self.watch = EncodeCallbacks()
        self.stream = stream(
            source=Source(uri=to_uri(self.landing)),
            storage=Storage(root=to_uri(self.root), prefix="p-"),
            key_properties=(),
        )

    def configure(self, **changes: Any) -> None:
        self.stream = replace(self.stream, **changes)

    def land(self, data: bytes, *, ending: str = "csv") -> Path:
        """Write the next file."""
        path = self.landing / f"orders-{len(self.items) + 1:04d}.{ending}"
        path.write_bytes(data)
        self.register(path)
        return path

    def register(self, path: Path) -> None:
        """Add an item for the current state of a file."""
        self.items.append(Item(id=len(self.items) + 1, file=landed_file(path)))

    def encode(self, **types: str) -> EncodeResult:
        """Encode all files with a schema given as name=type."""
        return self.encode_as(RecordSchema.from_json(list(types.items())))

    def encode_as(self, schema: RecordSchema) -> EncodeResult:
        return encode_items(self.session, self.stream, self.items, schema, self.watch)

    def encode_with_inferred_schema(self) -> tuple[RecordSchema, EncodeResult]:
        """Encode all files, widening the schema until they fit, as the encode step does."""
        schema = RecordSchema()
        for _ in range(4):
            result = self.encode_as(schema)
            if not result.misfits:
                return schema, result
            seen = [misfit.column for misfit in result.misfits]
            schema = schema.widened(seen, text_source=result.text_source)
        raise AssertionError("the schema still does not fit")

    def has_started(self) -> bool:
        """Return whether a task has written something."""
        return any(path.suffix in {".tmp", ".gz"} for path in self.root.iterdir())

    def files(self) -> list[str]:
        return sorted(path.name for path in self.root.rglob("*") if path.is_file())


def set_range_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Set the length of ranges of split files, so that files can be small."""
    monkeypatch.setattr(task_planning, "RANGE_BYTES", size)
    monkeypatch.setattr(task_planning, "MIN_RANGE_BYTES", size // 4)


def names(files: Sequence[PartFile]) -> list[str]:
    return [Path(to_path(part.uri)).name for part in files]


def numbered_jsonl(count: int, text_bytes: int, **changed: str) -> bytes:
    """Return JSON lines with ids from 0; `changed` replaces lines, given as line7=text."""
    lines = {f"line{n}": json.dumps({"id": n, "text": "x" * text_bytes}) for n in range(count)}
    return "\n".join((lines | changed).values()).encode()


def numbered_csv(count: int, text_bytes: int, **changed: str) -> bytes:
    """Return csv with ids from 0 and cells with line breaks and quotes."""
    quoted = '"' + 'a,\n""b' * (text_bytes // 6) + '"'
    rows = {f"line{number}": f"{number},{quoted}" for number in range(count)}
    return "\n".join(["id,text", *(rows | changed).values(), ""]).encode()


def numbered_parquet(count: int, text_bytes: int) -> bytes:
    """Return a parquet file with ids from 0, in row groups of 200."""
    texts = [f"{number:08d}" * (text_bytes // 8) for number in range(count)]
    table = pa.table({"id": pa.array(range(count)), "text": texts})
    return parquet(table, row_group_size=200, compression="none", use_dictionary=False)
