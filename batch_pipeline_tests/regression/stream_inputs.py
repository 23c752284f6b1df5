"""Inputs of the golden files: attributes of stream files, on a few records."""

import json
from collections.abc import Iterator
from typing import Any

from batch_pipeline_tests.regression.text_inputs import Input, jsonl, lenient

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
    yield lenient("limits.long_record", rows, b"id\n" + b"7" * 900, read_limits=_record_limit(500))
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


def _record_limit(record_bytes: int) -> dict[str, int]:
    return {"max_record_bytes": record_bytes}
