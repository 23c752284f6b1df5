"""Keys, locations, names, filters, states, pointer and stream files: each against its inverse."""

import json
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from hypothesis import strategies as st

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.config.units import (
    MAX_BYTES,
    MAX_DURATION,
    parse_bytes,
    parse_duration,
    parse_time,
)
from batch_pipeline.model.backfill import backfill_key, parse_backfill_key
from batch_pipeline.model.batch import key_digits, parse_partition_key, partition_key
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    ManifestFileTakenError,
    StreamFileError,
)
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.garbage import Folder, Probe, parse_name
from batch_pipeline.model.id_range import MAX_ID
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.location import shown, split_location, to_location, to_path, to_uri
from batch_pipeline.model.manifest import Origin, OriginItem, OriginJob
from batch_pipeline.model.manifest_file import ManifestUnfitError, parse_manifest_file, stream_of
from batch_pipeline.model.schema import RecordSchema, schema_of
from batch_pipeline.singer.bookmarks import read_bookmark
from batch_pipeline.singer.target.config import CONFIG_SCHEMA, read_batch_config, read_config
from batch_pipeline.storage.manifest_files import check_manifest_file, manifest_file_text
from batch_pipeline_tests.config import (
    test_stream_file,
    test_stream_file_mistakes,
    test_stream_file_tables,
)
from batch_pipeline_tests.factories import NOON, manifest, part_file, record_schema
from batch_pipeline_tests.guarantees.fuzz.damage import Batch, damaged_bytes, damaged_json
from batch_pipeline_tests.guarantees.fuzz.harness import Check, Outcome, expect

_KEYS = [b"00000001-00000060", b"00000000-9223372036854775807"]
_KEYS += [b"1000000000000-1000000000001", b"2023:00000020-00000029"]
_KEYS += [b"a_b.c-d:00000020-00000029", b"late:00000001-00000001"]
_LOCATIONS = [b"/data/orders 2026.csv", b"file:///data/%C3%A9%25.csv", b"s3://bucket/orders/1.csv"]
_LOCATIONS += [b"file:///data/a.csv#bytes=0-99,size=250", b"s3a://bucket/a%20b#bytes=100-199"]
_LOCATIONS += [
    b"gs://bucket/a/b.csv",
    b"abfs://box@account.dfs.core.windows.net/a.csv",
    b"FILE:///x",
]
_NAMES = [b"orders-00000001-00000060-a2-0123abcd-00000000-4567cdef.jsonl.gz"]
_NAMES += [b".orders-00000001-00000060-a1-0123abcd-00000000-4567cdef.parquet.tmp"]
_NAMES += [b"orders-00000001-00000060.g3.json", b".probe-" + b"0123abcd" * 4]
_NAMES += [b".orders-00000001-00000060-a2-0123abcd-4567cdef.stop"]
_SIZES = [b"64MiB", b"1.5 GB", b"1000", b"250ms", b"1.5h", b"30", b"5m", b"36500d", b"7.9EiB"]
_SIZES += [b"2026-03-01", b"2026-03-01T12:00:00+01:00", b"2026-03-01 12:00:00Z", b"12:00"]
_CONDITION = {"column": "size", "operator": ">=", "value": 5}
_FILTERS: list[Any] = [
    [_CONDITION, {"column": "a b", "operator": "is null"}],
    {"any": [_CONDITION, {"all": [{"column": "x", "operator": "in", "value": [1, "a", 0.5]}]}]},
    [{"any": [{"column": "x", "operator": "like", "value": "a%_"}, {"all": [_CONDITION]}]}],
    {"column": "x", "operator": "not in", "value": [True]},
]
_BOOKMARK = {"job": "orders", "batch_id": "a", "generation": 1, "publish_number": 7}
_STATES: list[Any] = [
    {"bookmarks": {"orders": _BOOKMARK}},
    {"bookmarks": {"orders": {**_BOOKMARK, "other_jobs": {"orders.b": 3}}, "others": {}}},
    {"type": "STATE", "value": {"bookmarks": {"orders": {"publish_number": MAX_ID}}}},
    {},
]
_MANIFEST_FILES: list[Any] = [
    manifest().to_json(),
    manifest(generation=7).to_json(),
    {"token": "x"},
]
_SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {
            "id": {"type": ["null", "integer"]},
            "price": {"type": "number", "multipleOf": 0.01},
            "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
            "data": {"type": ["object", "array", "null"], "properties": {"x": {}}},
            "raw": {"type": "string", "contentEncoding": "base64"},
        },
        "required": ["id"],
    },
    {"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "string", "format": "date"}]}}},
    {"type": ["null", "object"], "properties": {"r": {"$ref": "#/definitions/x"}}},
]
_CONFIGS: list[Any] = [
    {"home": "h", "format": "parquet", "compression": "zstd", "max_records": 5, "max_bytes": 9},
    {"stream_names": {"a": "b"}, "create_streams": False, "max_age_seconds": 0.5},
    {
        "batch_files": "copy",
        "batch_config": {
            "encoding": {"format": "jsonl", "compression": "gzip"},
            "storage": {"root": "file:///x", "prefix": "p", "params": {}},
            "batch_size": 10,
        },
    },
]
KEYS = damaged_bytes(*_KEYS)
LOCATIONS = damaged_bytes(*_LOCATIONS)
NAMES = damaged_bytes(*_NAMES)
SIZES = damaged_bytes(*_SIZES)
FILTERS = damaged_json(*_FILTERS)
STATES = damaged_json(*_STATES)
POINTERS = damaged_json(*_MANIFEST_FILES)
SCHEMAS = damaged_json(*_SCHEMAS)
CONFIGS = damaged_json(*_CONFIGS)


def text(data: bytes) -> str:
    """Return the text of bytes; what is none stands as U+FFFD."""
    return data.decode("utf-8", "replace")


def refusing(check: Callable[[bytes], object], *errors: type[Exception]) -> Check:
    """Make a check of what returns for a good input and raises one of the errors for a bad one.

    The message of an error has to be one that people can read.
    """

    def checked(data: bytes) -> Outcome:
        try:
            check(data)
        except errors as error:
            told = str(error)
            expect(0 < len(told) < 100_000, "a message of", len(told), "characters")
            return Outcome.REFUSED
        return Outcome.READ

    return checked


def open_keys(_folder: Path) -> Check:
    """Keys that are read are written the same way."""

    def check(data: bytes) -> None:
        written = text(data)
        name, colon, key = written.rpartition(":")
        if colon:
            name, id_range = parse_backfill_key(written)
        else:
            id_range = parse_partition_key(key)
        key = partition_key(id_range, key_digits(key))
        again = backfill_key(name, key) if colon else key
        expect(again == written, written, "became", again)

    return refusing(check, InvalidValueError)


def open_locations(_folder: Path) -> Check:
    """A location means the same as itself, whether it is a path, a URI or a range."""

    def check(data: bytes) -> None:
        location = to_location(text(data))
        expect(to_location(location) == location, location, "became", to_location(location))
        uri, part = split_location(location)
        again = uri if part is None else uri + part.fragment
        expect(again == location, location, "became", again)
        expect("\0" not in shown(location), "a NUL in", location)
        if location.startswith("file:"):
            path = to_path(location)
            expect(path.startswith("/") and to_path(to_uri(path)) == path, path)

    return refusing(check, InvalidValueError)


def open_names(_folder: Path) -> Check:
    """Names are those that are written here, or nobody's."""

    def check(data: bytes) -> Outcome:
        name = text(data)
        found = [parse_name(folder, name) for folder in Folder]
        known = [one for one in found if one is not None]
        for one in known:
            is_right = isinstance(one, Probe) or one.head in name
            expect(is_right and name.isascii(), name, "is", one)
        return Outcome.READ if known else Outcome.REFUSED

    return check


def open_sizes(_folder: Path) -> Check:
    """Sizes, durations and times stay within their bounds."""

    def size(written: str) -> None:
        expect(0 <= parse_bytes(written) <= MAX_BYTES, written)

    def duration(written: str) -> None:
        expect(0 <= parse_duration(written).total_seconds() <= MAX_DURATION.total_seconds())

    def time(written: str) -> None:
        expect(parse_time(written).astimezone(UTC).tzinfo is UTC, written)

    checks = [refusing(_of_text(one), InvalidValueError) for one in (size, duration, time)]

    def check(data: bytes) -> Outcome:
        outcomes = {one(data) for one in checks}
        return Outcome.READ if Outcome.READ in outcomes else Outcome.REFUSED

    return check


def open_filters(_folder: Path) -> Check:
    """A filter that is read says the same when it is written and read again."""

    def check(value: Any) -> None:
        found = parse_filter(value)
        expect(parse_filter(found.to_json()) == found, found)

    return refusing(_of_json(check), InvalidValueError)


def open_states(folder: Path) -> Check:
    """A bookmark has numbers of the kind that was published, or is refused."""
    path = folder / "state.json"

    def check(data: bytes) -> None:
        path.write_bytes(data)
        bookmark = read_bookmark(path, "orders")
        numbers = bookmark.numbers.values()
        expect(all(0 <= number <= MAX_ID for number in numbers), bookmark)
        if not numbers:
            state = json.loads(data)
            written = state.get("value", state).get("bookmarks", {}).get("orders")
            expect(written is None, "a bookmark that is not taken", written)

    return refusing(check, ConfigurationError)


def open_pointers(_folder: Path) -> Check:
    """A manifest file is that of a manifest only by its token."""
    own = manifest()
    expect(json.loads(manifest_file_text(own)) == own.to_json(), "a manifest file")

    def check(data: bytes) -> None:
        check_manifest_file(data, own, "file:///batches/manifests/x.json")
        expect(json.loads(data)["token"] == str(own.token), "another attempt's")

    return refusing(check, ManifestFileTakenError)


def open_schemas(_folder: Path) -> Check:
    """Columns that are declared are those that the inventory reads back."""

    def check(value: Any) -> None:
        schema = schema_of(value)
        expect(RecordSchema.from_json(schema.to_json()) == schema, schema)
        expect(set(schema.names) == set(value["properties"]), schema.names)

    return refusing(_of_json(check), InvalidValueError)


def open_configs(_folder: Path) -> Check:
    """The config of the target, and the `batch_config` in it."""
    known = CONFIG_SCHEMA["properties"]

    def check(value: Any) -> None:
        if isinstance(value, dict):
            read_config(value, known)
            value = value.get("batch_config", {})
        read_batch_config(value)

    return refusing(_of_json(check), InvalidValueError)


def _of_text(check: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: check(text(data))


def _of_json(check: Callable[[Any], object]) -> Callable[[bytes], object]:
    """Parse JSON as the edges do; what is none gets no further than them."""

    def checked(data: bytes) -> None:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise InvalidValueError("JSON", "(not shown)", "JSON") from None
        check(value)

    return checked


# Manifest files with all that a restored inventory reads from them

_MANIFEST_FILE = "orders-00000001-00000003.g1.json"
_TOKEN = UUID("12345678-1234-4234-8234-123456789012")
_PART = "orders-00000001-00000003-a1-12345678-00000000-0123abcd.jsonl.gz"
_ITEMS = (
    OriginItem(
        id=1,
        read=5,
        written=5,
        filtered=0,
        quarantined=0,
        location="file:///landing/a%20b.csv",
        size_bytes=10,
        modified_at=NOON,
        etag="x",
    ),
    OriginItem(id=3, read=1, written=0, filtered=0, quarantined=1, bad_file="is not there"),
)
_JOB = OriginJob(
    stream="orders",
    kind=JobKind.INCREMENTAL,
    meta_table="orders",
    config={"limits": {"max_count": 5}},
    max_attempts=3,
    bisect=True,
)
_ORIGIN = Origin(
    job=_JOB,
    publish_number=7,
    run_id="r",
    started_at=NOON,
    published_at=NOON,
    planned_with={},
    facts={"spilled": 1},
    weight_read=10,
    schema=record_schema("order_id", "price"),
    items=_ITEMS,
)
_MANIFEST = manifest(
    token=_TOKEN,
    part_files=(part_file(_PART),),
    items=2,
    records_read=6,
    records_quarantined=1,
    schema=_ORIGIN.schema,
    origin=_ORIGIN,
)
MANIFESTS = damaged_json(json.loads(manifest_file_text(_MANIFEST)))


def open_manifests(_folder: Path) -> Check:
    """Return a check that compares what is read with the JSON."""

    def check(data: bytes) -> Outcome:
        try:
            found = parse_manifest_file(data, _MANIFEST_FILE)
        except ManifestUnfitError as error:
            said = str(error)
            expect(_MANIFEST_FILE in said and len(said) < 20_000, said[:200])
            stream_of(data, _MANIFEST_FILE)
            return Outcome.REFUSED
        values = json.loads(data)
        expect(found.records == sum(one["records"] for one in values["part_files"]), found.records)
        origin = values.get("inventory")
        expect(found.number == (origin and origin["publish_number"]), found.number)
        return Outcome.READ

    return check


# Stream files

_HEAD = "type: batch_pipeline.BatchStream\nattributes:\n  stream: orders\n"
_LANDING = "  source: {uri: ./landing}\n"
_LOADED = """\
  key_properties: [id]
  targets:
    dw: {postgres: {conn: '${DW}', schema: sales, table: o, mode: upsert}}
    lake: {command: target-csv --log 'a b', config: {port: 5, list: [$NAME]}, timeout: 90s}
"""
_LAUGHS = "".join(
    f"  b{level}: &b{level} [{', '.join([f'*b{level - 1}'] * 9)}]\n" for level in range(1, 9)
)
_PLAIN = [
    test_stream_file_mistakes.MINIMAL,
    test_stream_file.FULL,
    test_stream_file_tables.FULL,
    _HEAD + _LANDING + _LOADED,
]
_ODD = [
    _HEAD + _LANDING + "  b0: &b0 [x, x]\n" + _LAUGHS + "  batch: {max_count: *b8}\n",
    _HEAD + _LANDING + "  b0: &b0 [x, x]\n" + _LAUGHS + "  select: *b8\n",
    _HEAD + _LANDING + "  stream_maps: &a {orders: *a}\n",
    _HEAD + _LANDING + "  batch: &a\n    <<: *a\n",
    _HEAD + _LANDING + "  schema: !!python/object/apply:os.getcwd []\n",
    _HEAD + _LANDING + "  batch: {max_wait: 2026-01-01, max_count: 0b11, max_weight: 1:30}\n",
    _HEAD + _LANDING + "  batch: {max_weight: !!int '', max_wait: !!timestamp x}\n",
    _HEAD
    + _LANDING
    + "  select: !!set {a, b}\n  key_properties: !!omap [a: 1]\n  x: !!binary Zg==\n",
    _HEAD + _LANDING + "  lineage: true\n  ? [a, b]\n  : c\n",
    "%YAML 1.1\n---\n" + _HEAD + _LANDING + "...\n---\nx\n",
]
# As text, or as values, because JSON is YAML.
STREAM_FILES: st.SearchStrategy[Batch] = st.one_of(
    damaged_bytes(*(one.encode() for one in [*_PLAIN, *_ODD])),
    damaged_json(*(yaml.safe_load(one) for one in _PLAIN)),
)


def open_stream_files(folder: Path) -> Check:
    """A stream has the name that its file says, and a refusal names the file."""
    path = folder / "defs.yaml"

    def check(data: bytes) -> Outcome:
        path.write_bytes(data)
        try:
            stream = read_stream_file(path)
        except StreamFileError as error:
            told = str(error)
            expect(told.startswith(str(path)) and len(told) < 20_000, told[:200])
            return Outcome.REFUSED
        said = yaml.safe_load(data.decode("utf-8-sig"))["attributes"]
        expect(stream.name == said["stream"], stream.name, said["stream"])
        expect(list(stream.key_properties) == said.get("key_properties", []), said)
        json.dumps(str(stream))
        return Outcome.READ

    return check
