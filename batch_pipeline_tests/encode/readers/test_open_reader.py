"""Reading landed files of all layouts, compressions and charsets."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from batch_pipeline.encode.chunks import JsonRecords, Table
from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.landed_files import COMPRESSORS, landed, stream_of

RECORDS = [{"id": number, "city": "Zürich 東京 😀", "of": str(number)} for number in range(500)]
LAYOUTS = {
    "jsonl": "\n".join(json.dumps(record, ensure_ascii=False) for record in RECORDS),
    "array": json.dumps(RECORDS, ensure_ascii=False),
    "pretty array": json.dumps(RECORDS, indent="\t", ensure_ascii=False),
    "documents": "\n".join(json.dumps(record, indent=2, ensure_ascii=False) for record in RECORDS),
    "one line": "".join(json.dumps(record, ensure_ascii=False) for record in RECORDS),
    "returns": "\r".join(json.dumps(record, ensure_ascii=False) for record in RECORDS),
    "csv": "id,city,of\n" + "".join(f'{r["id"]},{r["city"]},"{r["of"]}"\n' for r in RECORDS),
}


@pytest.mark.parametrize("compress", [bytes, *COMPRESSORS.values()], ids=["plain", *COMPRESSORS])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
def test_records_are_equal_in_any_layout_compression_and_charset(
    tmp_path: Path, layout: str, compress: Callable[[bytes], bytes], charset: str
) -> None:
    """Only a charset without a byte order mark is declared; the rest is detected."""
    file = landed(tmp_path, compress(LAYOUTS[layout].encode(charset)))
    stream = stream_of(charset=charset if charset == "gb18030" else "utf-8")
    records = []

    with open_source(file, stream) as source:
        assert (source.format is SourceFormat.CSV) == (layout == "csv")
        for chunk in source.reader.chunks(source, stream):
            assert not chunk.bad
            if isinstance(chunk, Table):
                records += [row | {"id": int(row["id"])} for row in chunk.batch.to_pylist()]
            elif isinstance(chunk, JsonRecords):
                records += [json.loads(line) for line in chunk.lines]

    assert records == RECORDS
