"""Inputs of the golden files: text and typed formats, and attributes of stream files."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
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


_MOMENT = datetime(2026, 1, 31, 12, 30, 0, 123456, tzinfo=UTC)


def typed_inputs() -> Iterator[Input]:
    """Yield the inputs of typed formats."""
    yield from _parquet()
    yield from _avro()


def parquet(columns: dict[str, pa.Array], **options: Any) -> bytes:
    """Return columns as a parquet file."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def avro(fields: dict[str, Any], *records: dict[str, Any], codec: str = "null") -> bytes:
    """Return records as an avro container with a constant sync marker."""
    schema = fastavro.parse_schema(
        {
            "type": "record",
            "name": "row",
            "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
        }
    )
    sink = io.BytesIO()
    fastavro.writer(sink, schema, records, codec=codec, sync_marker=b"0123456789abcdef")
    return sink.getvalue()


def _parquet() -> Iterator[Input]:
    numbers = {
        "i8": pa.array([1, None, -128], pa.int8()),
        "i64": pa.array([2**63 - 1, 0, -(2**63)], pa.int64()),
        "u64": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "f32": pa.array([0.1, None, 2.5], pa.float32()),
        "f64": pa.array([0.1, 1e300, -0.0], pa.float64()),
        "flag": pa.array([True, None, False]),
        "d": pa.array([Decimal("1.50"), None, Decimal("-99999.99")], pa.decimal128(7, 2)),
        "wide": pa.array([Decimal(10) ** 40, None, Decimal(1)], pa.decimal256(50, 0)),
    }
    yield Input(name="parquet.numbers", files={"1.parquet": parquet(numbers)}, all_encodings=True)
    times = {
        "day": pa.array([date(2026, 1, 31), None], pa.date32()),
        "time": pa.array([time(12, 30, 0, 1), None], pa.time64("us")),
        "zoned": pa.array([_MOMENT, None], pa.timestamp("us", "Europe/Zurich")),
        "plain": pa.array([_MOMENT.replace(tzinfo=None), None], pa.timestamp("ms")),
        "nanos": pa.array([1_700_000_000_123_456_000, None], pa.timestamp("ns")),
        "span": pa.array([5_000, None], pa.duration("ms")),
    }
    yield lenient("parquet.times", parquet({k: v for k, v in times.items() if k != "span"}))
    yield lenient("parquet.duration", parquet(times))
    too_fine = {"a": pa.array([1, 1_000], pa.timestamp("ns")), "b": pa.array([1, 2])}
    yield lenient("parquet.nanoseconds", parquet(too_fine))
    texts = {
        "text": pa.array(["é", None, "🙂\n"]),
        "large": pa.array(["a", "b", None], pa.large_string()),
        "dictionary": pa.array(["x", "y", "x"]).dictionary_encode(),
        "bytes": pa.array([b"\x00\xff", None, b""], pa.binary()),
        "fixed": pa.array([b"abcd", None, b"1234"], pa.binary(4)),
        "nothing": pa.nulls(3),
    }
    yield lenient("parquet.texts_and_bytes", parquet(texts))
    nested = {
        "point": pa.array(
            [{"x": 1, "y": None}, None], pa.struct({"x": pa.int64(), "y": pa.int8()})
        ),
        "tags": pa.array([["a", None], []], pa.list_(pa.string())),
        "map": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
        "deep": pa.array([[{"d": Decimal("0.10")}], None]),
    }
    yield lenient("parquet.nested", parquet(nested))
    nonfinite = {"a": pa.array([float("nan"), 1.5, float("inf")]), "b": pa.array([1, 2, 3])}
    for rule in ("quarantine", "null", "string"):
        yield lenient(f"parquet.nonfinite_{rule}", parquet(nonfinite), on_nonfinite=rule)
    rows = {"id": pa.array(range(2_000)), "text": pa.array([f"t{n % 7}" for n in range(2_000)])}
    groups = [parquet(rows, row_group_size=300, compression=c) for c in ("zstd", "gzip", "none")]
    yield lenient("parquet.row_groups", *groups, part_files={"max_records": 1_500})
    changed = {"text": pa.array([1.5]), "more": pa.array(["x"])}
    yield lenient("parquet.drifting_layout", groups[0], parquet(changed), b"id,text\n1,y\n")
    yield lenient("parquet.damaged", groups[0][:-20], parquet({"a": pa.array([1])}))


def _avro() -> Iterator[Input]:
    primitives: dict[str, Any] = {
        "i": "int",
        "l": "long",
        "f": "float",
        "d": "double",
        "b": "boolean",
        "s": "string",
        "y": "bytes",
        "n": "null",
        "u": ["null", "long", "string"],
    }
    values = {"i": -1, "l": 2**62, "f": 0.5, "d": 0.1, "b": True, "s": "é", "y": b"\x00\xff"}
    both = ({**values, "n": None, "u": 7}, {**values, "n": None, "u": "x"})
    file = {"1.avro": avro(primitives, *both, {**values, "n": None, "u": None})}
    yield Input(name="avro.primitives", files=file, all_encodings=True)
    logical = {
        "day": {"type": "int", "logicalType": "date"},
        "time": {"type": "long", "logicalType": "time-micros"},
        "zoned": {"type": "long", "logicalType": "timestamp-micros"},
        "plain": {"type": "long", "logicalType": "local-timestamp-millis"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "key": {"type": "string", "logicalType": "uuid"},
    }
    moments = {
        "day": date(2026, 1, 31),
        "time": time(12, 30, 0, 1),
        "zoned": _MOMENT,
        "plain": datetime(2026, 1, 31, 12, 30, tzinfo=UTC).replace(tzinfo=None),
        "price": Decimal("-12.50"),
        "key": "12345678-1234-4234-8234-123456789012",
    }
    yield lenient("avro.logical_types", avro(logical, moments))
    record = {"type": "record", "name": "p", "fields": [{"name": "x", "type": "int"}]}
    nested = {
        "point": record,
        "list": {"type": "array", "items": ["null", "string"]},
        "map": {"type": "map", "values": "double"},
        "kind": {"type": "enum", "name": "k", "symbols": ["A", "B"]},
        "fixed": {"type": "fixed", "name": "f", "size": 2},
    }
    record_ = {
        "point": {"x": 1},
        "list": ["a", None],
        "map": {"k": 0.5},
        "kind": "B",
        "fixed": b"ab",
    }
    yield lenient("avro.nested", avro(nested, record_))
    rows = [{"id": n, "text": f"t{n % 5}"} for n in range(500)]
    blocks = [avro({"id": "long", "text": "string"}, *rows, codec=c) for c in ("deflate", "bzip2")]
    yield lenient("avro.codecs", *blocks)
    special = avro({"a": "double"}, {"a": float("nan")}, {"a": 1.5})
    yield lenient("avro.nonfinite", special)
    yield lenient("avro.damaged", blocks[0][:-100], avro({"id": "long"}, {"id": 1}))


_PEOPLE = jsonl(
    {"id": 1, "email": "a@x.org", "name": "Ada", "amount": 12.5, "at": {"city": "Bern"}},
    {"id": 2, "email": None, "name": "Bob", "amount": 100.0, "at": {"city": "Zug", "zip": [6300]}},
    {"id": 3, "name": "", "at": None},
    {"email": "e@x.org", "id": 4, "name": "Eve", "amount": -1, "extra": {"deep": {"er": [1]}}},
)
_CELLS = b"id,email,name,amount\n1,a@x.org,Ada,12.50\n2,,Bob,1e2\n3,c@x.org,,-1\n"
_ALL_LINEAGE = ["_item_id", "_record_number", "_batch_id", "_attempt", "_sdc_extracted_at"]


def stream_inputs() -> Iterator[Input]:
    """Yield the inputs that test attributes of the stream file."""
    yield from _maps()
    yield from _lineage()
    yield from _schemas()
    yield from _limits()


def _maps() -> Iterator[Input]:
    def both(name: str, **attributes: Any) -> Iterator[Input]:
        yield lenient(f"map.{name}", _PEOPLE, **attributes)
        yield lenient(f"map.{name}_of_csv", _CELLS, **attributes)

    def rules(**by_property: Any) -> dict[str, Any]:  # the name of the stream is added later
        return {"stream_maps": by_property}

    yield from both("select", select=["*", "!email", "!at.city"])
    yield from both("select_some", select=["id", "name"])
    yield from both("rename", **rules(mail="email", email=None))
    yield from both("hash", **rules(email="md5(email)"), key_properties=["id"])
    yield from both("expressions", **rules(upper="name.upper()", double="float(amount) * 2"))
    yield from both("filter", **rules(__filter__="name != 'Bob'"))
    yield from both("keep_only", **rules(id="id", who="name", __else__=None))
    yield from both("alias", **rules(__alias__="people", __key_properties__=["name"]))
    config = {"stream_map_config": {"seed": "s1"}}
    yield from both("config", **rules(email="sha256(config['seed'] + name)"), **config)
    flat: dict[str, Any] = {"flattening_enabled": True, "flattening_max_depth": 5}
    yield lenient("map.flattening", _PEOPLE, **flat)
    yield lenient("map.flattening_depth", _PEOPLE, **{**flat, "flattening_max_depth": 1})
    yield lenient("map.flattening_separator", _PEOPLE, **flat, flattening_separator=".")
    mapped = rules(city="at['city'] if at else None")
    yield lenient("map.flattening_and_rules", _PEOPLE, **flat, **mapped)


def _lineage() -> Iterator[Input]:
    for name, content in (("jsonl", _PEOPLE), ("csv", _CELLS)):
        yield lenient(f"lineage.own_{name}", content, b"", content, lineage=_ALL_LINEAGE)
        yield lenient(f"lineage.singer_{name}", content, lineage=True)
        yield lenient(f"lineage.source_file_{name}", content, lineage=["_source_file"])
    yield lenient("lineage.clash", b'{"_item_id":7}\n', b'{"a":1}\n', lineage=["_item_id"])


def _schemas() -> Iterator[Input]:
    properties = {
        "id": {"type": "integer"},
        "name": {"type": ["string", "null"]},
        "amount": {"type": ["number", "null"]},
        "day": {"type": ["string", "null"], "format": "date"},
        "at": {"type": ["string", "null"], "format": "date-time"},
        "tags": {"type": ["array", "null"], "items": {"type": "string"}},
    }
    schema = {"type": "object", "properties": properties}
    good = jsonl({"id": 1, "name": "é", "day": "2026-01-31", "at": "2026-01-31T12:30:00Z"})
    bad = jsonl({"id": "x", "more": 1}, {"id": 2, "day": "no day"}, {"id": 3, "tags": ["a", 1]})
    cells = b"id,day,at,more\n1,2026-01-31,2026-01-31T12:30:00+02:00,\nx,no day,,2\n3,,,\n"
    each = {"batch": {"max_count": 1}}
    for evolution in ("add", "fail", "rescue"):
        rules = {"schema": {"file": "schema.json", "evolution": evolution}, **each}
        name = f"schema.declared_{evolution}"
        attributes = lenient(name, **rules).attributes
        files = {"1.jsonl": good, "2.jsonl": bad, "3.csv": cells}
        yield Input(name=name, files=files, attributes=attributes, schema=schema)
        rules = {"schema": {"evolution": evolution}, **each}
        drifting = (jsonl({"a": 1}), jsonl({"a": 1.5, "b": "x"}), b"a,c\nx,2\n", jsonl({"a": [1]}))
        yield lenient(f"schema.inferred_{evolution}", *drifting, **rules)
    sample = jsonl(*({"a": n} for n in range(50)), {"a": "late"})
    yield lenient("schema.sample", sample, schema={"sample_records": 10})


def _limits() -> Iterator[Input]:
    rows = b"id,text\n" + b"".join(b"%d,%s\n" % (n, b"x" * (n % 40)) for n in range(500))
    yield lenient("limits.part_records", rows, rows, part_files={"max_records": 300})
    yield lenient("limits.part_bytes", rows, part_files={"max_bytes": 4_000})
    limit = {"max_record_bytes": 500}
    yield lenient("limits.long_record", rows, b"id\n" + b"7" * 900, read_limits=limit)
    wide = jsonl({f"c{n}": n for n in range(30)}, {"c1": 1})
    yield lenient("limits.columns", wide, read_limits={"max_columns": 20})
    big = b"id,text\n" + b"".join(b"%d,%s\n" % (n, b"y" * (n % 90)) for n in range(4_000))
    source = {"format": "csv", "max_item_size": "64KiB"}
    yield lenient("limits.item_size", big, source=source, batch={"max_count": 2})
    yield lenient("limits.batches", *[rows[: 500 + n] for n in range(5)], batch={"max_count": 2})
    strict = {"on_bad_record": {"max_bad_records": 1}}
    ragged = b"a,b\n1\n1,2\n2\n"
    yield Input(name="limits.bad_records", files={"1.csv": ragged}, attributes=strict)
    yield Input(name="limits.bad_file", files={"1.csv": b"a,a\n1,2\n"})
    skip = {"on_bad_file": {"corrupt": "skip"}}
    files = {"1.csv": b"a,a\n1,2\n", "2.csv": b"a\n3\n"}
    yield Input(name="limits.bad_file_skipped", files=files, attributes=skip)
    level = {"encoding": {"level": 9}}
    repeated = json.dumps([{"a": "x" * 50}] * 90).encode()
    yield lenient("limits.compression_level", repeated, **level)
