"""Part files and encoders with known records, for tests that read published batches."""

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batch_pipeline.encode.arrow_types import arrow_schema_of
from batch_pipeline.model.encode_request import EncodeRequest, EncodeResult
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.schema import Column, RecordSchema
from batch_pipeline_tests.factories import encode_result, item_report

JSONL = Encoding(format=Format.JSONL, compression=Compression.GZIP)
PARQUET = Encoding(format=Format.PARQUET, compression=Compression.SNAPPY)

Record = Mapping[str, Any]


def schema_of(**columns: str) -> RecordSchema:
    """Return a schema of columns by name and type text."""
    return RecordSchema(tuple(Column.from_text(name, kind) for name, kind in columns.items()))


def write_part(path: Path, records: Sequence[Record], schema: RecordSchema) -> PartFile:
    """Write records to a part file, as parquet or gzipped JSON lines by its suffix."""
    if path.suffix == ".parquet":
        rows = [{name: record.get(name) for name in schema.names} for record in records]
        pq.write_table(pa.Table.from_pylist(rows, arrow_schema_of(schema.columns)), path)
    else:
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        path.write_bytes(gzip.compress(lines.encode(), mtime=0))
    return described(path, len(records))


def described(path: Path, records: int) -> PartFile:
    """Describe a part file as the encoding task that wrote it would."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return PartFile(uri=to_uri(path), records=records, size_bytes=len(content), sha256=digest)


@dataclass
class RecordEncoder:
    """Encoder whose part files contain the records of `batches`, one entry per encode."""

    root: Path
    schema: RecordSchema
    batches: list[Sequence[Record]] = field(default_factory=list)

    def prepare(self) -> None:
        """Do nothing."""

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Write the next records. The counts of the item reports add up to their number."""
        records = self.batches.pop(0)
        suffix = request.stream.encoding.suffix
        part = write_part(self.root / f"{request.stem}-0.{suffix}", records, self.schema)
        reports = [
            item_report(item.id, location=item.file.location, read=0, written=0)
            for item in request.items
        ]
        reports[0] = replace(reports[0], read=len(records), written=len(records))
        return encode_result(part_files=(part,) if records else (), items=tuple(reports))
