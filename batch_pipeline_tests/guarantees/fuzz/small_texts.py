"""Keys, locations, filters, states, names, pointer files, sizes: each against its inverse."""

import json
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

from batch_pipeline.domain.backfill_key import backfill_key, parse_backfill_key
from batch_pipeline.domain.errors import InvalidValueError, PointerTakenError
from batch_pipeline.domain.file_range import split_location
from batch_pipeline.domain.filter import parse_filter
from batch_pipeline.domain.id_range import MAX_ID
from batch_pipeline.domain.json_schema import schema_of
from batch_pipeline.domain.location import shown, to_location, to_path, to_uri
from batch_pipeline.domain.partition_key import parse_partition_key, partition_key
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stored_file import Folder, Probe, parse_name
from batch_pipeline.files.pointers import check_pointer, pointer_text
from batch_pipeline.settings.times import parse_time
from batch_pipeline.settings.units import MAX_BYTES, MAX_DURATION, parse_bytes, parse_duration
from batch_pipeline.singer.bookmarks import StateFileError, read_bookmark
from batch_pipeline.singer.incoming.batch_config import read_batch_config
from batch_pipeline.singer.target.config import CONFIG_SCHEMA, read_config
from batch_pipeline_tests.factories import manifest
from batch_pipeline_tests.guarantees.fuzz.harness.targets import Check, Outcome, expect

KEYS = [b"000000000001-000000000060", b"000000000000-9223372036854775807"]
KEYS += [b"1000000000000-1000000000001", b"2023:000000000020-000000000029"]
KEYS += [b"a_b.c-d:000000000020-000000000029", b"late:000000000001-000000000001"]
LOCATIONS = [b"/data/orders 2026.csv", b"file:///data/%C3%A9%25.csv", b"s3://bucket/orders/1.csv"]
LOCATIONS += [b"file:///data/a.csv#bytes=0-99,size=250", b"s3a://bucket/a%20b#bytes=100-199"]
LOCATIONS += [
    b"gs://bucket/a/b.csv",
    b"abfs://box@account.dfs.core.windows.net/a.csv",
    b"FILE:///x",
]
NAMES = [b"orders-000000000001-000000000060-a2-0123abcd-00000000-4567cdef.jsonl.gz"]
NAMES += [b".orders-000000000001-000000000060-a1-0123abcd-00000000-4567cdef.parquet.tmp"]
NAMES += [b"orders-000000000001-000000000060.g3.json", b".probe-" + b"0123abcd" * 4]
NAMES += [b".orders-000000000001-000000000060-a2-0123abcd-4567cdef.stop"]
SIZES = [b"64MiB", b"1.5 GB", b"1000", b"250ms", b"1.5h", b"30", b"5m", b"36500d", b"7.9EiB"]
SIZES += [b"2026-03-01", b"2026-03-01T12:00:00+01:00", b"2026-03-01 12:00:00Z", b"12:00"]
_CONDITION = {"column": "size", "operator": ">=", "value": 5}
FILTERS: list[Any] = [
    [_CONDITION, {"column": "a b", "operator": "is null"}],
    {"any": [_CONDITION, {"all": [{"column": "x", "operator": "in", "value": [1, "a", 0.5]}]}]},
    [{"any": [{"column": "x", "operator": "like", "value": "a%_"}, {"all": [_CONDITION]}]}],
    {"column": "x", "operator": "not in", "value": [True]},
]
_BOOKMARK = {"job": "orders", "batch_id": "a", "generation": 1, "publish_number": 7}
STATES: list[Any] = [
    {"bookmarks": {"orders": _BOOKMARK}},
    {"bookmarks": {"orders": {**_BOOKMARK, "other_jobs": {"orders.b": 3}}, "others": {}}},
    {"type": "STATE", "value": {"bookmarks": {"orders": {"publish_number": MAX_ID}}}},
    {},
]
POINTERS: list[Any] = [manifest().to_json(), manifest(generation=7).to_json(), {"token": "x"}]
SCHEMAS: list[Any] = [
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
PAIRS: list[Any] = [
    [["id", "integer"], ["price", "decimal(12,2)"], ["ä", "any"]],
    [],
    [["x", "time"]],
]
CONFIGS: list[Any] = [
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


def text(data: bytes) -> str:
    """Give the text of bytes; what is none stands as U+FFFD."""
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
        if ":" in written:
            again = backfill_key(*parse_backfill_key(written))
        else:
            again = partition_key(parse_partition_key(written))
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

    return refusing(check, StateFileError)


def open_pointers(_folder: Path) -> Check:
    """A pointer file is that of a manifest only by its token."""
    own = manifest()
    expect(json.loads(pointer_text(own)) == own.to_json(), "a pointer file")

    def check(data: bytes) -> None:
        check_pointer(data, own, "file:///batches/manifests/x.json")
        expect(json.loads(data)["token"] == str(own.token), "another attempt's")

    return refusing(check, PointerTakenError)


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
