"""The Singer target on a real inventory: what lands, in which order, and when STATE is printed."""

import json
import shutil
from decimal import Decimal
from hashlib import md5

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch_pipeline.config.stream_file import load_streams
from batch_pipeline.model.errors import ConfigurationError
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


def test_records_land_byte_for_byte_and_are_registered(home: TargetHome) -> None:
    text = '{"id": 123456789012345678901234567890, "price": 1.10,"name":"\\u00e9 é"}'
    line = f'{{"type":"RECORD","stream":"orders","record":{text}}}'.encode()
    wide = {"properties": {"id": {}, "price": {"type": "number"}, "name": {"type": "string"}}}
    assert home.run(schema(schema=wide), line, state(1), compression="none") == [{"at": 1}]
    (path,) = home.files()
    assert path.read_text(encoding="utf-8") == text + "\n"
    assert path.parent == home.root / "home/landing/orders"


def test_names_of_landed_files_tell_stream_run_and_order(home: TargetHome) -> None:
    home.run(schema(), record(1), record(2), max_records=1)
    home.run(schema(), record(3))
    names = [path.name for path in home.files()]
    assert [name.split("-")[0] for name in names] == ["orders"] * 3
    assert [name.split("-")[-1] for name in names] == [
        "000001.jsonl.gz",
        "000002.jsonl.gz",
        "000001.jsonl.gz",
    ]
    assert len({name.split("-")[2] for name in names}) == 2
    assert home.landed() == sorted(names)
    assert home.ids() == [1, 2, 3]


def test_state_waits_for_every_stream_that_has_older_records(home: TargetHome) -> None:
    printed = home.run(
        schema("a"),
        schema("b"),
        record(1, "b"),
        state(1),
        record(1, "a"),
        record(2, "a"),  # lands both of a
        state(2),
        record(2, "b"),  # lands both of b
        record(3, "a"),
        state(3),
        max_records=2,
    )
    assert printed == [{"at": 2}, {"at": 3}]


def test_state_without_anything_before_it_is_printed_at_once(home: TargetHome) -> None:
    assert home.run(schema(), state(1), state(2)) == [{"at": 1}, {"at": 2}]


def test_state_keeps_every_digit_of_its_value(home: TargetHome) -> None:
    printed = home.run(b'{"type":"STATE","value":{"at":12345678901234567890.10}}')
    assert printed == [{"at": Decimal("12345678901234567890.10")}]


def test_file_that_is_full_by_bytes_lands_before_the_next_record(home: TargetHome) -> None:
    home.run(schema(), *[record(number) for number in range(4)], max_bytes=40)
    assert [len(read(path)) for path in home.files()] == [2, 2]


def test_file_that_is_old_lands_with_the_next_record(home: TargetHome) -> None:
    home.run(schema(), record(1), record(2), max_age_seconds=1e-9)
    assert [len(read(path)) for path in home.files()] == [1, 1]


@pytest.mark.parametrize("wrong", [{"id": "x"}, {"id": 1.5}, {"id": None}])
def test_record_unlike_its_schema_stops_the_target(home: TargetHome, wrong: object) -> None:
    printed, error = home.run_until_refused(
        schema(), record(1), state(1), record(2), {**record(3), "record": wrong}, state(2)
    )
    assert printed == []
    assert isinstance(error, MessageError)
    assert "Correct the record or the SCHEMA" in str(error)
    assert (error.line, error.stream) == (5, "orders")
    assert error.problem.startswith("id: ")
    assert home.files() == []
    assert home.landed() == []


def test_record_unlike_its_schema_passes_without_validation(home: TargetHome) -> None:
    """Expect `validate_records: false` to be heard, and only the keys to be looked at."""
    home.run(schema(), {**record(1), "record": {"id": "x"}}, validate_records=False)
    assert home.records() == [{"id": "x"}]
    _, error = home.run_until_refused(
        schema(), {**record(1), "record": {"name": "x"}}, validate_records=False
    )
    assert isinstance(error, RecordKeyMissingError)


def test_schema_that_is_none_stops_the_target(home: TargetHome) -> None:
    _, error = home.run_until_refused(schema(schema={"properties": {"id": {"type": "int"}}}))
    assert isinstance(error, MessageError)
    assert "key `schema`: is not a JSON Schema" in str(error)
    assert error.line == 1


def test_schema_that_changes_starts_a_new_file(home: TargetHome) -> None:
    wider = {"properties": {"id": {"type": "integer"}, "price": {"type": "number"}}}
    home.run(schema(), record(1), schema(), record(2), schema(schema=wider), record(3))
    assert [[one["id"] for one in read(path)] for path in home.files()] == [[1, 2], [3]]


def test_metadata_columns_are_added_where_they_are_asked_for(home: TargetHome) -> None:
    said = record(1, version=7, time_extracted="2026-01-01T00:00:00Z")
    home.run(schema(), said, add_record_metadata=True)
    (found,) = home.records()
    assert found["_sdc_table_version"] == 7
    assert found["_sdc_extracted_at"] == "2026-01-01T00:00:00Z"
    assert {name for name in found if name.startswith("_sdc_")} == {
        "_sdc_batched_at",
        "_sdc_deleted_at",
        "_sdc_extracted_at",
        "_sdc_received_at",
        "_sdc_sequence",
        "_sdc_sync_started_at",
        "_sdc_table_version",
    }


def test_metadata_columns_of_the_tap_are_removed_where_they_are_not(home: TargetHome) -> None:
    """Expect what the SDK does: the columns are the target's."""
    home.run(schema(), {**record(1), "record": {"id": 1, "_sdc_sequence": 5, "x": 1.10}})
    assert home.records() == [{"id": 1, "x": 1.1}]


def test_activated_version_ends_the_file_and_is_no_loss(home: TargetHome) -> None:
    home.run(
        schema(),
        record(1, version=1),
        {"type": "ACTIVATE_VERSION", "stream": "orders", "version": 2},
        record(2, version=2),
        state(1),
    )
    assert [len(read(path)) for path in home.files()] == [1, 1]
    assert home.ids() == [1, 2]


def test_stream_maps_are_applied_to_what_lands(home: TargetHome) -> None:
    maps = {"orders": {"name": "md5(name)", "__filter__": "id != 2"}, "secret": None}
    home.run(
        schema(),
        record(1),
        record(2),
        schema("secret"),
        record(3, "secret"),
        state(1),
        stream_maps=maps,
    )
    assert home.records() == [{"id": 1, "name": md5(b"n1", usedforsecurity=False).hexdigest()}]
    assert home.files("secret") == []
    assert not (home.root / "streams/secret").exists()


def test_streams_that_a_map_gives_one_name_lose_no_record(home: TargetHome) -> None:
    priced = {"properties": {"id": {"type": "integer"}, "price": {"type": "number"}}}
    printed = home.run(
        schema("eu"),
        record(1, "eu"),
        schema("us", schema=priced),
        record(2, "us"),
        record(3, "eu"),
        state(1),
        stream_maps={"eu": {"__alias__": "users"}, "us": {"__alias__": "users"}},
    )
    assert printed == [{"at": 1}]
    assert home.ids("users") == [1, 2, 3]


def test_parquet_files_have_the_types_of_the_schema(home: TargetHome) -> None:
    shape = {
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": ["null", "string"], "format": "date-time"},
            "price": {"type": "number", "multipleOf": 0.01},
            "tags": {"type": "array"},
        }
    }
    said = {"id": 1, "at": "2026-01-01T00:00:00+01:00", "price": 1.25, "tags": ["a", 1.10]}
    home.run(schema(schema=shape), {**record(1), "record": said}, format="parquet")
    (found,) = home.records()
    assert found["at"].isoformat() == "2025-12-31T23:00:00+00:00"
    assert str(found["price"]) == "1.25"
    assert json.loads(found["tags"], parse_float=str) == ["a", "1.1"]


def test_parquet_column_that_cannot_hold_a_value_refuses_it(home: TargetHome) -> None:
    printed = home.refuses(
        MessageError,
        "Correct the record or the SCHEMA",
        schema(),
        record(1),
        {**record(2), "record": {"id": 2**70}},
        state(1),
        format="parquet",
    )
    assert printed == []
    assert home.landed() == []


_DAY = {"properties": {"id": {"type": "integer"}, "day": {"type": "string", "format": "date"}}}


def test_parquet_column_of_dates_takes_midnight(home: TargetHome) -> None:
    said = [
        record(at, record={"id": at, "day": day})
        for at, day in enumerate(["2026-01-02", "2026-01-02T00:00:00", "2026-01-02T00:00:00Z"])
    ]
    home.run(schema(schema=_DAY), *said, format="parquet")
    assert [one["day"].isoformat() for one in home.records()] == ["2026-01-02"] * 3


def test_parquet_column_of_dates_refuses_a_time_of_day(home: TargetHome) -> None:
    said = record(1, record={"id": 1, "day": "2026-01-02T10:00:00"})
    _, error = home.run_until_refused(schema(schema=_DAY), said, format="parquet")
    assert isinstance(error, MessageError)
    assert "Correct the record or the SCHEMA" in str(error)
    assert "'2026-01-02T10:00:00' has a time of day" in str(error)


def test_stream_file_that_exists_says_where_to_land(home: TargetHome) -> None:
    folder = home.describe("{uri: ./in, format: parquet}", name="sales", stream="sales")
    home.run(schema(), record(1), stream_names={"orders": "sales"})
    (path,) = home.files("sales")
    assert path.parent == folder / "in"
    assert path.suffix == ".parquet"
    assert read(path) == [{"id": 1, "name": "n1"}]


def test_stream_file_of_another_format_is_told(home: TargetHome) -> None:
    home.describe("{uri: ./in, format: csv}")
    home.refuses(ConfigurationError, "reads csv files", schema(), record(1))


def test_stream_file_that_describes_another_stream_is_left_alone(home: TargetHome) -> None:
    folder = home.describe("{uri: ./in}", stream="other")
    _, error = home.run_until_refused(schema(), record(1))
    assert "describes another stream" in str(error)
    assert [path.name for path in folder.iterdir()] == ["defs.yaml"]


def test_stream_file_that_is_written_holds_what_schema_says(home: TargetHome) -> None:
    home.run(schema("sales/é", key_properties=["id"]), record(1, "sales/é"))
    (made,) = load_streams(home.root / "streams").values()
    assert made.name.startswith("sales_-")
    assert made.key_properties == ("id",)
    assert made.schema.declared is not None
    assert made.schema.declared.names == ("id", "name")
    assert isinstance(made.source, Source)
    assert made.source.uri == to_uri(home.files(made.name)[0].parent)


def test_stream_of_references_has_its_columns_inferred(home: TargetHome) -> None:
    shape = {
        "properties": {"id": {"$ref": "#/$defs/id"}},
        "$defs": {"id": {"type": "integer"}},
    }
    home.run(schema(schema=shape), {**record(1), "record": {"id": 1}})
    (made,) = load_streams(home.root / "streams").values()
    assert made.schema.declared is None
    home.refuses(
        MessageError,
        "Correct the record or the SCHEMA",
        schema(schema=shape),
        {**record(1), "record": {"id": "x"}},
    )


def test_stream_without_columns_has_them_inferred(home: TargetHome) -> None:
    home.run(schema(schema={"properties": {}}, key_properties=[]), record(1))
    (made,) = load_streams(home.root / "streams").values()
    assert made.schema.declared is None


def test_schema_that_refers_to_the_network_is_refused(home: TargetHome) -> None:
    shape = {"properties": {"id": {"$ref": "http://127.0.0.1:9/x"}}}
    _, error = home.run_until_refused(schema(schema=shape))
    assert isinstance(error, MessageError)
    assert "key `schema`: is not a JSON Schema" in str(error)
    assert "nothing is fetched" in str(error)


def test_landing_folder_that_is_a_file_is_told(home: TargetHome) -> None:
    (home.root / "file").touch()
    _, error = home.run_until_refused(schema(), landing_root=str(home.root / "file"))
    assert isinstance(error, ConfigurationError)
    assert "The landing folder" in str(error)
    assert f"{home.root}/file" in str(error)


def test_landing_folder_that_vanishes_ends_the_target(
    home: TargetHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = home.root / "home/landing/orders"

    def vanish(name: str) -> None:
        if name == "target.before_rename":
            shutil.rmtree(landing)

    monkeypatch.setattr(landing_files, "failpoint", vanish)
    printed = home.refuses(ConfigurationError, "The landing folder", schema(), record(1), state(1))
    assert printed == []
    assert home.files() == []


def test_stream_without_a_file_gets_one_only_if_wanted(home: TargetHome) -> None:
    """Expect `create_streams: false` to land and register, and to write no stream file."""
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
def test_printed_states_never_run_ahead_of_any_order(
    home: TargetHome, said: list[str], bound: int
) -> None:
    streams = ("a", "b", "c")
    before = {stream: len(home.records(stream)) for stream in streams}
    messages = [
        state(at) if one == "STATE" else record(at, one) for at, one in enumerate(said, start=1)
    ]
    printed = home.run(*[schema(stream) for stream in streams], *messages, max_records=bound)
    told = [one["at"] for one in printed]
    assert told == sorted(set(told))
    states = [at for at, one in enumerate(said, start=1) if one == "STATE"]
    assert told[-1:] == states[-1:]
    for stream in streams:
        expected = [at for at, one in enumerate(said, start=1) if one == stream]
        assert home.ids(stream)[before[stream] :] == expected
