"""Values that a mapping removes or replaces appear in no output."""

import gzip
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from batch_pipeline.encode.chunks import MalformedRecord
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.record_rules import RecordMapping
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.mapping.mapping_factories import (
    ADA_MAIL,
    mapped,
    mapped_table,
    mapping,
    table,
)
from batch_pipeline_tests.encode.task_fixture import quarantining_task

HIDING = {
    "select": mapping(("*", "!email")),
    "remove": mapping(email=None),
    "hash": mapping(email="md5(email)"),
    "keep only": mapping(id="id", name="name", __else__=None),
    "else": mapping(id="id", n="int(name)", __else__=None),
    "remove and fail": mapping(email=None, n="int(name)", m="email['x']", o="float(email)"),
    "hash and fail": mapping(email="sha256(email)", n="datetime.date.fromisoformat(email)"),
    "filter that fails": mapping(email=None, __filter__="int(email) > 1"),
    "key that fails": mapping(email=None, n="config[email]", m="{}[email]"),
    "change in place": mapping(email=None, n="tags.append(1)", m="int(email)"),
    "flatten": RecordMapping(
        stream_maps={"orders": {"email": None}}, flattening_enabled=True, flattening_max_depth=1
    ),
}


@pytest.mark.parametrize("name", HIDING)
def test_hidden_value_is_not_in_mapped_records(name: str) -> None:
    record_mapping = HIDING[name]
    lines = [
        f'{{"id":1,"email":"{ADA_MAIL}","name":"Ada","tags":[]}}',
        f'{{"id":2,"name":"7","email":"{ADA_MAIL}","tags":{{}}}}',
        f'{{"id":3,"email":"{ADA_MAIL}"',
        f'["{ADA_MAIL}"]',
        f'{{"id":4,"em\\u0061il":"{ADA_MAIL}","email":"{ADA_MAIL}","name":"8","tags":null}}',
    ]
    chunk = mapped(record_mapping, *(line.encode() for line in lines))
    assert len(chunk.bad) >= 2
    assert ADA_MAIL not in repr(chunk)
    columns = {name: pa.array(cells) for name, cells in _CELLS.items()}
    for text in (frozenset(columns), frozenset[str]()):
        given = table(
            columns, text=text, bad=(MalformedRecord(line=1, reason="-", raw=ADA_MAIL.encode()),)
        )
        result = mapped_table(record_mapping, given)
        assert ADA_MAIL not in repr((result.batch.to_pydict(), result.bad))


_CELLS = {
    "id": ["1", "2"],
    "email": [ADA_MAIL, ADA_MAIL],
    "name": ["Ada", "7"],
    "tags": ["a", None],
}

MIXED = {
    "jsonl": (
        f'{{"id":1,"email":"{ADA_MAIL}","name":"7"}}\n'
        f'{{"id":2,"email":"{ADA_MAIL}","name":"Ada"}}\n'
        f'{{"id":3,"email":"{ADA_MAIL}"\n'
    ),
    "csv": f"id,email,name\n1,{ADA_MAIL},7\n2,{ADA_MAIL},Ada\n3,{ADA_MAIL}\n4,a,b,c,{ADA_MAIL}\n",
}


@pytest.mark.parametrize("output", [Format.JSONL, Format.PARQUET])
@pytest.mark.parametrize("source", MIXED)
@pytest.mark.parametrize(
    "record_mapping",
    [mapping(email="md5(email)", n="int(name)"), mapping(("!email",), n="int(name)")],
)
def test_hidden_value_is_not_in_files_or_report_of_task(
    tmp_path: Path, output: Format, source: str, record_mapping: RecordMapping
) -> None:
    task = quarantining_task(tmp_path, SourceFormat.AUTO, output)
    encoding = Encoding(format=output, compression=Compression.NONE)  # text is visible
    task.stream = replace(task.stream, mapping=record_mapping, encoding=encoding)
    task.land(MIXED[source].encode())
    types = {} if record_mapping.select == ("!email",) else {"email": "string"}
    report = task.encode(id="integer", **types, name="string", n="integer")
    assert report.part_files
    assert report.quarantine_files
    assert sum(item.written for item in report.items) == 1
    assert ADA_MAIL not in repr(report)
    for path in tmp_path.glob("batches/**/*"):
        if path.is_file():
            data = path.read_bytes()
            plain = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
            assert ADA_MAIL.encode() not in plain
