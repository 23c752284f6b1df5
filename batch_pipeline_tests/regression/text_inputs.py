"""Inputs of the golden files: csv, JSON and text, plain and compressed."""

import bz2
import gzip
import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import zstandard

_LENIENT = {"on_bad_record": {"max_bad_ratio": 1.0}, "on_bad_file": "quarantine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Files that land together, and the attributes of their stream.

    `schema` is the JSON Schema in `schema.json`. An input with `all_encodings` is encoded in all
    encodings, others in one per format.
    """

    name: str
    files: Mapping[str, bytes]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    all_encodings: bool = False


def text_inputs() -> Iterator[Input]:
    """Yield the inputs of all text formats."""
    yield from _csv()
    yield from _csv_dialects()
    yield from _jsonl()
    yield from _json()
    yield from _compressed()


def lenient(name: str, *contents: bytes, **attributes: Any) -> Input:
    """Return an input whose bad records and bad files are quarantined."""
    files = {f"{number}.dat": content for number, content in enumerate(contents, 1)}
    return Input(name=name, files=files, attributes={**_LENIENT, **attributes})


def jsonl(*records: Any) -> bytes:
    """Return records as JSON lines."""
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def _options(**options: Any) -> dict[str, Any]:
    return {"format": "csv", "options": options}


def _csv() -> Iterator[Input]:
    orders = b"order_id,city,price,paid\n" + b"".join(
        b"%d,%s,%d.%02d,%s\n" % (n, (b"Bern", "Zürich".encode(), b"")[n % 3], n, n % 100, b"true")
        for n in range(1, 60)
    )
    yield Input(name="csv.orders", files={"1.csv": orders}, all_encodings=True)
    yield lenient("csv.crlf", b"a,b\r\n1,x\r\n2,y\r\n")
    yield lenient("csv.carriage_returns", b"a,b\r1,x\r2,y\r")
    yield lenient("csv.byte_order_mark", b"\xef\xbb\xbfa,b\n1,x\n")
    yield lenient("csv.no_final_newline", b"a,b\n1,x\n2,y")
    yield lenient("csv.empty_files", b"", b"a,b\n", b"a,b\n1,2\n", b"\n")
    yield lenient("csv.blank_lines", b"a,b\n\n1,2\n\n\n3,4\n\n")
    yield lenient("csv.quoted_newlines", b'id,text\n1,"a\nb"\n2,"c\r\n\r\nd"\n3,"e ""f"", g"\n')
    yield lenient("csv.empty_and_quoted_empty", b'a,b,c\n1,,""\n2,"",x\n,,\n')
    yield lenient(
        "csv.numbers",
        b"a,b,c,d,e,f\n"
        b"1,1.50,9007199254740993,12345678901234567890123,007,1e5\n"
        b"-0,-0.25,1,-1,+1,1.5E-9\n"
        b"9223372036854775807,123456789.01234567890,2.5,0.5,.5,1e400\n",
    )
    yield lenient("csv.forty_digits", b"a\n" + b"9" * 40 + b"\n1\n")
    yield lenient(
        "csv.drifting_layout",
        *(b"id,name\n1,a\n", b"name,id,note\nb,2,late\n", b"id\n3\n", b"note,city,id\nx,Bern,x4\n"),
    )
    yield lenient("csv.unicode_header", 'größe,名前,a b,"c,d"\n1,花,🙂,é\n'.encode())
    yield lenient("csv.column_case", b"id,ID,Id\n1,2,3\n")
    yield lenient("csv.ragged", b"a,b\n1\n1,2\n1,2,3\n")
    yield lenient("csv.bytes_not_utf8", b"a,b\n1,\xff\n2,y\n\xc3,z\n")
    yield lenient("csv.column_twice", b"a,a\n1,2\n", b"a\n3\n")
    yield lenient("csv.stray_quotes", b'a,b\n1,x"y\n"2"z,w\n3,"open\n')
    yield lenient("csv.nul_characters", b"a,b\n1,x\x00y\n2,z\n")
    yield lenient("csv.mixed_with_jsonl", b"a,b\n1,x\n", b'{"b":"y","c":[1]}\n', b"c,a\n,2\n")


def _csv_dialects() -> Iterator[Input]:
    yield lenient("csv.semicolons", b"a;b\n1,5;x\n2;'y\n", source=_options(delimiter=";"))
    yield lenient("csv.tabs", b"a\tb\n1\tx,y\n", source=_options(delimiter="\t"))
    quoted = b"a|b\n'x|''y'|1\n'p\nq'|2\n"
    yield lenient("csv.single_quotes", quoted, source=_options(delimiter="|", quote="'"))
    escaped = b'a,b\n"x\\"y",1\nz\\,w,2\n'
    yield lenient("csv.escape", escaped, source=_options(escape="\\"))
    yield lenient("csv.names", b"1,x\n2,y\n", source=_options(names=["id", "text"]))
    latin = "a,b\n1,Zürich\n2,Genève\n".encode("latin-1")
    yield lenient("csv.latin_1", latin, source=_options(charset="latin-1"))
    yield lenient("csv.cp1252", "a\n€ “x”\n".encode("cp1252"), source=_options(charset="cp1252"))
    yield lenient("csv.utf_16", "a,b\n1,花\n".encode("utf-16"), "a,b\n2,é\n".encode("utf-32"))
    yield lenient("csv.shift_jis", "a\n花\n".encode("shift_jis"), source=_options(charset="cp932"))


def _jsonl() -> Iterator[Input]:
    people = jsonl(
        *(
            {"id": n, "name": f"n{n}", "score": n / 8, "tags": ["a"] * (n % 3), "at": {"x": n}}
            for n in range(1, 60)
        )
    )
    yield Input(name="jsonl.people", files={"1.jsonl": people}, all_encodings=True)
    yield lenient("jsonl.nested", jsonl({"a": {"b": {"c": [1, {"d": None}]}}, "e": [[], {}]}, {}))
    yield lenient(
        "jsonl.big_numbers",
        b'{"a":12345678901234567890123,"b":0.1,"c":1.10,"d":-0,"e":1e2}\n'
        b'{"a":-1,"b":0.12345678901234567890123,"c":2,"d":0,"e":1.0}\n'
        + b'{"a":%s,"b":1e400,"c":1E-400,"d":-0.0,"e":1E+2}\n'
        % (b"9" * 45),
    )
    yield lenient("jsonl.exact_integers", b'{"a":9007199254740993}\n{"a":1.5}\n')
    yield lenient("jsonl.unicode", '{"a":"é\\u00e9\\ud83d\\ude00🙂\\/\\n","ключ":"花"}\n'.encode())
    yield lenient("jsonl.half_surrogate", b'{"a":"\\ud800"}\n{"a":"x"}\n{"\\udc00":1}\n')
    yield lenient("jsonl.nul_characters", b'{"a":"x\\u0000y"}\n{"a\\u0000b":1}\n{"a":"z"}\n')
    yield lenient("jsonl.null_and_absent", b'{"a":null}\n{}\n{"a":1}\n{"b":null}\n')
    yield lenient("jsonl.only_nulls", b'{"a":null,"b":null}\n{"a":null}\n')
    yield lenient("jsonl.duplicate_keys", b'{"a":1,"a":2}\n{"a":{"b":1,"b":2}}\n{"a":3}\n')
    yield lenient(
        "jsonl.malformed",
        b'{"a":1}\n{"a":\n[1]\n"text"\n{"a":1}x\n{"a":\xff}\n{\'a\':1}\n{"a":01}\n{"a":2}\n',
    )
    yield lenient("jsonl.blank_and_padded", b' {"a" : 1 , "b":[ 1, 2 ] }\r\n\n  \n{"a":2}')
    yield lenient("jsonl.mixed_types", jsonl(*({"a": v} for v in (1, "x", True, [1], {"b": 2}))))
    yield lenient("jsonl.widened", jsonl({"a": 1}), jsonl({"a": 1.5}), jsonl({"a": 10**25}))
    yield lenient("jsonl.key_order", b'{"b":1,"a":2}\n{"a":3,"b":4,"c":5}\n{"c":6,"b":7}\n')
    yield lenient("jsonl.unusual_keys", jsonl({"": 1, "a.b": 2, 'q"': 3, "x y": 4, "A": 5, "a": 6}))
    deep = b'{"a":' * 40 + b"1" + b"}" * 40 + b"\n"
    too_deep = b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"\n"
    yield lenient("jsonl.deep", deep, too_deep)
    nonfinite = b'{"a":NaN}\n{"a":1.5}\n{"a":[Infinity,-Infinity]}\n'
    for rule in ("quarantine", "null", "string"):
        yield lenient(f"jsonl.nonfinite_{rule}", nonfinite, on_nonfinite=rule)


def _json() -> Iterator[Input]:
    source = {"format": "json"}
    array = json.dumps([{"a": n, "b": {"c": [n]}} for n in range(5)], indent=2).encode()
    yield lenient("json.array", array, source=source)
    yield lenient("json.array_without_format", array)
    documents = b'{"a":\n 1}\n{"a":2}{"a":3}\n\n[{"a":4}]'
    yield lenient("json.documents", documents, source=source)
    yield lenient("json.bad_elements", b'[{"a":1},2,{"a":1,"a":2},{"a":3}]', source=source)
    yield lenient("json.truncated", b'[{"a":1},{"a":', b'[{"a":2}]', source=source)
    yield lenient("json.trailing_text", b'[{"a":1}] x', b"[]", source=source)


def _compressed() -> Iterator[Input]:
    rows = b"a,b\n" + b"".join(b"%d,x%d\n" % (n, n) for n in range(40))
    lines = jsonl(*({"a": n, "b": f"x{n}"} for n in range(40)))
    zst = zstandard.ZstdCompressor(level=3).compress(lines)
    packed = gzip.compress(rows, mtime=0)
    yield lenient("compressed.gzip", packed + gzip.compress(b"90,y\n", mtime=0))
    yield lenient("compressed.bzip2", bz2.compress(rows), bz2.compress(lines))
    yield lenient("compressed.xz", lzma.compress(lines), lzma.compress(rows))
    yield lenient("compressed.zstd", zst, zst + zst)
    yield lenient("compressed.empty", gzip.compress(b"", mtime=0), bz2.compress(b""))
    damaged = (packed[:-9], packed[:-8] + b"\0" * 8, lzma.compress(rows)[:-20], zst[:-4])
    yield lenient("compressed.damaged", b"a,b\n1,x\n", *damaged)
    yield lenient("compressed.zip_archive", b"PK\x03\x04" + b"\0" * 30, b"a\n1\n")
