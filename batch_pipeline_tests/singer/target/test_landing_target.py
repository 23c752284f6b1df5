"""The Singer target with a real inventory: landed files, their order, and printed STATEs."""

import json
import os
import shutil
from decimal import Decimal
from hashlib import md5
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch_pipeline.cli import target
from batch_pipeline.cli.target import scaffold
from batch_pipeline.config.stream_file import load_streams
from batch_pipeline.model.errors import ConfigurationError, RetryableError, StreamFileError
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Source
from batch_pipeline.singer.parser import MessageError
from batch_pipeline.singer.target import landing_files
from batch_pipeline.singer.target.sink import RecordKeyMissingError
from batch_pipeline_tests.singer.target.target_fixture import (
    TargetHome,
    read,
    record,
    schema,
    state,
)

CORRECT = "Correct the record or the SCHEMA"


def test_records_are_landed_byte_for_byte_and_registered(home: TargetHome) -> None:
    text = '{"id": 123456789012345678901234567890, "price": 1.10,"name":"\\u00e9 é"}'
    line = f'{{"type":"RECORD","stream":"orders","record":{text}}}'.encode()
    wide = {"properties": {"id": {}, "price": {"type": "number"}, "name": {"type": "string"}}}
    assert home.run(schema(schema=wide), line, state(1), compression="none") == [{"at": 1}]
    (path,) = home.files()
    assert path.read_text(encoding="utf-8") == text + "\n"
    assert path.parent == home.root / "home/landing/orders"


def test_names_of_landed_files_have_stream_run_and_order(home: TargetHome) -> None:
    home.run(schema(), record(1), record(2), max_records=1)
    home.run(schema(), record(3))
    names = [path.name for path in home.files()]
    streams, _, runs, numbers = zip(*(name.split("-") for name in names), strict=True)
    assert streams == ("orders",) * 3
    assert numbers == ("000001.jsonl.gz", "000002.jsonl.gz", "000001.jsonl.gz")
    assert len(set(runs)) == 2
    assert home.landed() == sorted(names)
    assert home.ids() == [1, 2, 3]


def test_state_is_printed_after_older_records_of_all_streams_landed(home: TargetHome) -> None:
    printed = home.run(
        schema("a"),
        schema("b"),
        record(1, "b"),
        state(1),
        record(1, "a"),
        record(2, "a"),  # lands both records of a
        state(2),
        record(2, "b"),  # lands both records of b
        record(3, "a"),
        state(3),
        max_records=2,
    )
    assert printed == [{"at": 2}, {"at": 3}]


def test_state_without_preceding_records_is_printed_at_once(home: TargetHome) -> None:
    exact = '{"type":"STATE","value":{"at":12345678901234567890.10,"Łódź":1}}'.encode()
    printed = home.run(schema(), state(1), exact)
    assert printed == [{"at": 1}, {"at": Decimal("12345678901234567890.10"), "Łódź": 1}]


def test_file_lands_when_it_reaches_max_bytes_or_max_age(home: TargetHome) -> None:
    home.run(schema(), *[record(number) for number in range(4)], max_bytes=40)
    home.run(schema(), record(1), record(2), max_age_seconds=1e-9)
    assert [len(read(path)) for path in home.files()] == [2, 2, 1, 1]


def test_invalid_record_stops_the_target(home: TargetHome) -> None:
    for invalid in ("x", 1.5, None):
        messages = schema(), record(1), state(1), record(2), record(3, record={"id": invalid})
        printed, error = home.run_until_error(*messages, state(2))
        assert isinstance(error, MessageError)
        assert CORRECT in str(error)
        assert (error.line, error.stream, error.problem[:4]) == (5, "orders", "id: ")
        assert (printed, home.files(), home.landed()) == ([], [], [])


def test_invalid_record_is_accepted_without_validation(home: TargetHome) -> None:
    """Only the keys are checked."""
    home.run(schema(), record(1, record={"id": "x"}), validate_records=False)
    assert home.records() == [{"id": "x"}]
    keyless = schema(), record(1, record={"name": "x"})
    home.assert_error(RecordKeyMissingError, "lacks 'id'", *keyless, validate_records=False)


def test_invalid_schema_stops_the_target(home: TargetHome) -> None:
    invalid = schema(schema={"properties": {"id": {"type": "int"}}})
    home.assert_error(MessageError, "Correct the SCHEMA, or set `validate_records: false`", invalid)
    remote = schema(schema={"properties": {"id": {"$ref": "http://127.0.0.1:9/x"}}})
    _, error = home.run_until_error(remote)
    assert str(error).startswith("Line 1, stream 'orders', key `schema`: is not a JSON Schema")
    assert "nothing is fetched" in str(error)


def test_schema_of_draft_4_is_accepted(home: TargetHome) -> None:
    """Taps of databases write it for decimals. As in other drafts, formats are not validated."""
    price = {"type": "number", "multipleOf": 0.01, "maximum": 100, "exclusiveMaximum": True}
    at = {"type": "string", "format": "date-time"}
    shape = schema(schema={"properties": {"id": {"type": "integer"}, "price": price, "at": at}})
    valid = {"id": 1, "price": 99.99, "at": "2026-01-01 00:00:00"}
    home.run(shape, record(1, record=valid))
    assert home.records() == [valid]
    home.assert_error(MessageError, CORRECT, shape, record(2, record={"id": 2, "price": 100}))


@pytest.mark.parametrize("metadata", [False, True])
def test_changed_schema_starts_a_new_file(home: TargetHome, metadata: bool) -> None:
    wider = {"properties": {"id": {"type": "integer"}, "price": {"type": "number"}}}
    messages = schema(), record(1), schema(), record(2), schema(schema=wider), record(3)
    home.run(*messages, add_record_metadata=metadata)
    assert [[one["id"] for one in read(path)] for path in home.files()] == [[1, 2], [3]]


def test_metadata_columns_are_added_if_configured(home: TargetHome) -> None:
    message = record(1, version=7, time_extracted="2026-01-01T00:00:00Z")
    home.run(schema(), message, add_record_metadata=True)
    (landed,) = home.records()
    assert landed["_sdc_table_version"] == 7
    assert landed["_sdc_extracted_at"] == "2026-01-01T00:00:00Z"
    times = "batched_at", "deleted_at", "extracted_at", "received_at", "sync_started_at"
    added = {f"_sdc_{name}" for name in (*times, "sequence", "table_version")}
    assert {name for name in landed if name.startswith("_sdc_")} == added


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_metadata_columns_of_the_tap_are_kept(home: TargetHome, file_format: str) -> None:
    """`_sdc_deleted_at` is the only sign of a deletion in the source."""
    shape = {"properties": {"id": {"type": "integer"}, "_sdc_deleted_at": {"type": "string"}}}
    deleted = {"id": 1, "_sdc_deleted_at": "2026-01-01"}
    home.run(schema(schema=shape), record(1, record=deleted), format=file_format)
    assert home.records() == [deleted]
    (created,) = load_streams(home.root / "streams").values()
    assert created.schema.declared is not None
    assert created.schema.declared.names == ("id", "_sdc_deleted_at")


@pytest.mark.parametrize(
    ("file_format", "strict", "kept"),
    [("jsonl", False, True), ("jsonl", True, False), ("parquet", False, False)],
)
def test_undeclared_metadata_columns_are_kept_where_possible(
    home: TargetHome, file_format: str, strict: bool, kept: bool
) -> None:
    shape = {"properties": {"id": {"type": "integer"}}, "additionalProperties": not strict}
    sent = {"id": 1, "_sdc_received_at": "2026-01-01"}
    home.run(schema(schema=shape), record(1, record=sent), format=file_format)
    assert home.records() == [sent if kept else {"id": 1}]


def test_activate_version_starts_a_new_file_and_loses_nothing(home: TargetHome) -> None:
    home.run(
        schema(),
        record(1, version=1),
        {"type": "ACTIVATE_VERSION", "stream": "orders", "version": 2},
        record(2, version=2),
        state(1),
    )
    assert [len(read(path)) for path in home.files()] == [1, 1]
    assert home.ids() == [1, 2]


def test_stream_maps_are_applied_to_landed_records(home: TargetHome) -> None:
    maps = {"orders": {"name": "md5(name)", "__filter__": "id != 2"}, "secret": None}
    secret = schema("secret"), record(3, "secret")
    home.run(schema(), record(1), record(2), *secret, state(1), stream_maps=maps)
    assert home.records() == [{"id": 1, "name": md5(b"n1", usedforsecurity=False).hexdigest()}]
    assert home.files("secret") == []
    assert not (home.root / "streams/secret").exists()


def test_failing_stream_map_is_reported_with_its_line(home: TargetHome) -> None:
    for expression, problem in {
        "name +": "Line 1, stream 'orders', key `schema`: does not fit `stream_maps` (Failed to",
        "int(name)": "Line 2, stream 'orders', key `record`: cannot be mapped (ValueError: invalid",
        "nothing": "cannot be mapped (NameNotDefined: 'nothing' is not defined",
    }.items():
        maps = {"orders": {"name": expression}}
        home.assert_error(MessageError, problem, schema(), record(1), stream_maps=maps)


def test_streams_with_the_same_alias_lose_no_records(home: TargetHome) -> None:
    priced = {"properties": {"id": {"type": "integer"}, "price": {"type": "number"}}}
    first = schema("eu"), record(1, "eu")
    second = schema("us", schema=priced), record(2, "us")
    maps = {"eu": {"__alias__": "users"}, "us": {"__alias__": "users"}}
    printed = home.run(*first, *second, record(3, "eu"), state(1), stream_maps=maps)
    assert printed == [{"at": 1}]
    assert home.ids("users") == [1, 2, 3]


def test_parquet_files_have_types_of_schema(home: TargetHome) -> None:
    shape = {
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": ["null", "string"], "format": "date-time"},
            "price": {"type": "number", "multipleOf": 0.01},
            "tags": {"type": "array"},
            "opens": {"type": "string", "format": "time"},
        }
    }
    message = {"id": 1, "at": "2026-01-01T00:00:00+01:00", "price": 1.25, "tags": ["a", 1.10]}
    message["opens"] = "10:00:00.123456000Z"
    home.run(schema(schema=shape), record(1, record=message), format="parquet")
    (landed,) = home.records()
    assert landed["at"].isoformat() == "2025-12-31T23:00:00+00:00"
    assert str(landed["price"]) == "1.25"
    assert json.loads(landed["tags"], parse_float=str) == ["a", "1.1"]
    assert landed["opens"].isoformat() == "10:00:00.123456"


TOO_WIDE = {
    "integer": [str(2**63), "1e400000", "1.5", "true", '"1"'],
    "number": ["1e400", "true", "{}"],
    "decimal": ["1.005", "1e400000", str(10**36), "true"],
    "string": ["1"],
    "boolean": ['"true"'],
    "time": ['"10:00:00+02:00"', '"10:00:00.1234567"'],
    "date-time": ['"9999-12-31T23:59:59-02:00"', '"0001-01-01T00:00:00+02:00"'],
    "date-time-local": ['"2026-01-01T00:00:00Z"', '"2026-01-01T00:00:00.0000001"'],
}
SHAPES = {
    "decimal": {"type": "number", "multipleOf": 0.01},
    **{
        kind: {"type": "string", "format": kind}
        for kind in ("time", "date-time", "date-time-local")
    },
}


def test_value_that_parquet_column_cannot_hold_is_rejected(home: TargetHome) -> None:
    """The error names the line of the record, although rows are written later."""
    options: dict[str, Any] = {"format": "parquet", "validate_records": False}
    for kind, text in ((kind, text) for kind, texts in TOO_WIDE.items() for text in texts):
        shape = SHAPES.get(kind, {"type": kind})
        announced = schema(schema={"properties": {"id": {"type": "integer"}, "v": shape}})
        wrong = f'{{"type":"RECORD","stream":"orders","record":{{"id":2,"v":{text}}}}}'.encode()
        valid = record(1, record={"id": 1})
        printed, error = home.run_until_error(announced, valid, wrong, valid, state(1), **options)
        assert isinstance(error, MessageError)
        assert (error.line, error.problem[:13]) == (3, "property v is")
        assert "or land jsonl instead of parquet" in str(error)
        assert printed == home.landed() == []


def test_exact_numbers_are_landed_in_parquet(home: TargetHome) -> None:
    shape = {
        "id": {"type": "integer"},
        "price": {"type": "number", "multipleOf": 0.01},
        "rate": {"type": "number"},
    }
    texts = ['"id":-9223372036854775808,"price":-1.500', '"id":1.0,"price":1e3,"rate":1.7e308']
    lines = [f'{{"type":"RECORD","stream":"orders","record":{{{text}}}}}' for text in texts]
    home.run(schema(schema={"properties": shape}), *map(str.encode, lines), format="parquet")
    assert [tuple(map(str, one.values())) for one in home.records()] == [
        ("-9223372036854775808", "-1.50", "None"),
        ("1", "1000.00", "1.7e+308"),
    ]


def test_parquet_date_column_accepts_midnight_only(home: TargetHome) -> None:
    day = {"type": "string", "format": "date"}
    shape = schema(schema={"properties": {"id": {"type": "integer"}, "day": day}})
    texts = ["2026-01-02", "2026-01-02T00:00:00", "2026-01-02T00:00:00Z"]
    messages = [record(at, record={"id": at, "day": text}) for at, text in enumerate(texts)]
    home.run(shape, *messages, format="parquet")
    assert [one["day"].isoformat() for one in home.records()] == ["2026-01-02"] * 3
    message = record(1, record={"id": 1, "day": "2026-01-02T10:00:00"})
    problem = "'2026-01-02T10:00:00' has a time of day"
    home.assert_error(MessageError, problem, shape, message, format="parquet")


def test_existing_stream_file_determines_landing_folder(home: TargetHome) -> None:
    folder = home.write_stream_file("{uri: ./in, format: parquet}", name="sales", stream="sales")
    home.run(schema(), record(1), stream_names={"orders": "sales"})
    (path,) = home.files("sales")
    assert path.parent == folder / "in"
    assert path.suffix == ".parquet"
    assert read(path) == [{"id": 1, "name": "n1"}]


def test_stream_file_of_unsupported_format_is_rejected(home: TargetHome) -> None:
    home.write_stream_file("{uri: ./in, format: csv}")
    home.assert_error(ConfigurationError, "reads csv files", schema(), record(1))


def test_stream_file_of_another_stream_is_kept(home: TargetHome) -> None:
    folder = home.write_stream_file("{uri: ./in}", stream="other")
    home.assert_error(ConfigurationError, "describes another stream", schema(), record(1))
    assert [path.name for path in folder.iterdir()] == ["defs.yaml"]


def test_invalid_stream_file_in_another_folder_is_reported(home: TargetHome) -> None:
    home.write_stream_file("{uri: ./in, typo: 1}", name="shop")
    home.assert_error(StreamFileError, "shop/defs.yaml:4: ", schema(), record(1))
    assert [path.name for path in (home.root / "streams").iterdir()] == ["shop"]


def test_stream_file_of_a_concurrent_writer_is_kept(
    home: TargetHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It appears between the check and the write."""

    def write_first(*announced: Any) -> object:
        home.write_stream_file("{uri: ./in}")
        return scaffold(*announced)

    monkeypatch.setattr(target, "scaffold", write_first)
    exists = lambda path: path.name != "defs.yaml" and os.path.lexists(path)  # noqa: E731
    monkeypatch.setattr(Path, "exists", exists)
    home.run(schema(), record(1))
    assert home.files()[0].parent == home.root / "streams/orders/in"


@pytest.mark.parametrize("is_known", [False, True])
def test_stream_file_that_would_disable_another_stream_is_not_created(
    home: TargetHome, is_known: bool
) -> None:
    """Dagster does not distinguish the names."""
    if is_known:
        home.run(schema("a_b"), record(1, "a_b"))
    messages = schema("a_b"), schema("a-b"), record(2, "a-b")
    home.assert_error(ConfigurationError, "name another stream for it in `stream_n", *messages)
    assert [*load_streams(home.root / "streams")] == ["a_b"]
    home.run(*messages, stream_names={"a-b": "c"})
    assert home.ids("c") == [2]


def test_created_stream_file_has_keys_and_columns_of_schema(home: TargetHome) -> None:
    home.run(schema("sales/é", key_properties=["id"]), record(1, "sales/é"))
    (created,) = load_streams(home.root / "streams").values()
    assert created.name.startswith("sales_-")
    assert created.key_properties == ("id",)
    assert created.schema.declared is not None
    assert created.schema.declared.names == ("id", "name")
    assert isinstance(created.source, Source)
    assert created.source.uri == to_uri(home.files(created.name)[0].parent)


def test_stream_file_is_not_created_in_the_folder_of_the_demo(
    home: TargetHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the streams folder while there is no other."""
    monkeypatch.delenv("BATCH_PIPELINE_STREAMS")
    monkeypatch.chdir(home.root)
    demo = home.root / "home/demo/streams"
    demo.mkdir(parents=True)
    home.run(schema(), record(1))
    assert (list(load_streams(home.root / "streams")), list(demo.iterdir())) == (["orders"], [])
    (home.root / "streams").rename(home.root / "moved")
    (home.root / "moved/orders").rename(demo / "orders")  # as an earlier release created it
    home.run(schema(), record(2))
    assert not (home.root / "streams").exists()


def test_columns_of_schema_with_references_are_inferred(home: TargetHome) -> None:
    shape = {"properties": {"id": {"$ref": "#/$defs/id"}}, "$defs": {"id": {"type": "integer"}}}
    home.run(schema(schema=shape), record(1, record={"id": 1}))
    home.run(schema("empty", schema={"properties": {}}, key_properties=[]), record(1, "empty"))
    created = load_streams(home.root / "streams").values()
    assert [one.schema.declared for one in created] == [None, None]
    invalid = record(1, record={"id": "x"})
    home.assert_error(MessageError, CORRECT, schema(schema=shape), invalid)


def test_landing_folder_that_is_a_file_is_rejected(home: TargetHome) -> None:
    (home.root / "file").touch()
    text = f"The landing folder {home.root}/file"
    home.assert_error(ConfigurationError, text, schema(), landing_root=str(home.root / "file"))


def test_deleted_landing_folder_stops_the_target(
    home: TargetHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = home.root / "home/landing/orders"

    def delete_landing_folder(name: str) -> None:
        if name == "target.before_rename":
            shutil.rmtree(landing)

    monkeypatch.setattr(landing_files, "failpoint", delete_landing_folder)
    messages = schema(), record(1), state(1)
    printed = home.assert_error(ConfigurationError, "The landing folder", *messages)
    assert printed == home.files() == []


CUT = """
CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW;
END $$;
CREATE TRIGGER cut BEFORE INSERT ON batch_pipeline.item EXECUTE FUNCTION cut();
"""


def test_landed_file_that_cannot_be_registered_is_named(home: TargetHome) -> None:
    with psycopg.connect(home.database_url) as connection:
        connection.execute(CUT)
    printed, error = home.run_until_error(schema(), record(1), state(1))
    (name,) = home.landed()
    assert isinstance(error, RetryableError)
    assert "Nothing was registered. Start it" in str(error)
    assert f"/{name} has landed" in str(error)
    assert printed == home.files() == []


def test_stream_file_is_not_created_if_disabled(home: TargetHome) -> None:
    """Files are landed and registered nevertheless."""
    home.run(schema(), record(1), create_streams=False)
    assert home.ids() == [1]
    assert not (home.root / "streams").exists()


@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    st.lists(st.sampled_from(["a", "b", "c", "STATE"]), min_size=1, max_size=14),
    st.integers(1, 4),
)
def test_printed_states_cover_landed_records_only(
    home: TargetHome, message: list[str], bound: int
) -> None:
    streams = ("a", "b", "c")
    before = {stream: len(home.records(stream)) for stream in streams}
    messages = [
        state(at) if one == "STATE" else record(at, one) for at, one in enumerate(message, start=1)
    ]
    printed = home.run(*[schema(stream) for stream in streams], *messages, max_records=bound)
    printed_numbers = [one["at"] for one in printed]
    assert printed_numbers == sorted(set(printed_numbers))
    states = [at for at, one in enumerate(message, start=1) if one == "STATE"]
    assert printed_numbers[-1:] == states[-1:]
    for stream in streams:
        expected = [at for at, one in enumerate(message, start=1) if one == stream]
        assert home.ids(stream)[before[stream] :] == expected
