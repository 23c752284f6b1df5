"""The tap: messages in both modes, resumption, catalogs, and rejected configurations."""

import copy
import io
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from singer_sdk import BatchSink, Target
from singer_sdk.exceptions import ConfigValidationError
from singer_sdk.helpers._batch import BaseBatchFileEncoding, BatchConfig

from batch_pipeline.__main__ import tap as run_tap
from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.errors import BatchDataError, ConfigurationError
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.singer.messages import JSON_SCHEMA, Bookmark, batch_message
from batch_pipeline.singer.tap import PendingManifests, PublishedStream
from batch_pipeline_tests.conformance.rules import broken_rules
from batch_pipeline_tests.encode.writers.part_factories import (
    ENCODINGS,
    encoding_id,
    part_paths,
    published_lines,
    published_table,
    table,
)
from batch_pipeline_tests.factories import batch, record_schema, stream
from batch_pipeline_tests.published_files import schema_of
from batch_pipeline_tests.singer.tap.tap_fixture import (
    ListedSource,
    printed,
    sent,
    signals_restored,
    tap_class,
)

MESSAGE_SCHEMA = json.loads(JSON_SCHEMA.read_text(encoding="utf-8"))
BATCHES = {"mode": "batch"}
DOCUMENTED = {
    "encoding": {"format": "jsonl", "compression": "gzip"},
    "storage": {"root": "file:///somewhere/else", "prefix": "my-batch-"},
    "batch_size": 10,
}


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    with signals_restored():
        yield


@pytest.fixture
def source(tmp_path: Path) -> ListedSource:
    """Two batches, the second with an additional column, and a backfill."""
    wide = record_schema("order_id", "price")
    big = b'{"order_id":3,"price":12345678901234567890.10}'
    backfill = batch(1, 3, job="orders.2023")
    return ListedSource(
        [
            published_lines(tmp_path / "1", b'{"order_id":1}', b'{"order_id":2}'),
            published_lines(tmp_path / "2", big, batch=batch(4, 6), schema=wide, schema_version=2),
            published_lines(tmp_path / "3", b'{"order_id":1}', batch=backfill, schema=wide),
        ]
    )


def kinds(messages: list[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in messages]


def state_after(source: ListedSource, count: int, **config: Any) -> Any:
    """Return the state after this number of batches."""
    states = [one for one in sent(source, config=config) if one["type"] == "STATE"]
    return states[count - 1]["value"]


def catalog(source: ListedSource, **selected: bool) -> dict[str, Any]:
    """Return the discovered catalog with these columns selected or deselected."""
    catalog_: dict[str, Any] = tap_class(source)(config={}).catalog_dict
    for entry in catalog_["streams"][0]["metadata"]:
        breadcrumb = entry["breadcrumb"]
        if breadcrumb and breadcrumb[1] in selected:
            entry["metadata"]["selected"] = selected[breadcrumb[1]]
    return catalog_


def test_batch_mode_sends_manifests(source: ListedSource) -> None:
    messages = sent(source, config=BATCHES)
    assert kinds(messages) == ["SCHEMA", "BATCH", "STATE"] * 2 + ["BATCH", "STATE"]
    batches = [one for one in messages if one["type"] == "BATCH"]
    assert batches == [batch_message(one, name="orders") for one in source.manifests]
    paths = [[f"file://{path}" for path in part_paths(one)] for one in source.manifests]
    assert [one["manifest"] for one in batches] == paths
    assert messages[-1]["value"]["bookmarks"]["orders"] == {
        "job": "orders.2023",
        "batch_id": "00000001-00000003",
        "generation": 1,
        "publish_number": 1,
        "other_jobs": {"orders": 2},
    }


def test_record_mode_sends_text_of_records(source: ListedSource) -> None:
    lines = printed(tap_class(source)(config={}))
    assert lines[1] == b'{"type":"RECORD","stream":"orders","record":{"order_id":1}}\n'
    assert b'"price":12345678901234567890.10}}\n' in lines[5]
    whole = ["SCHEMA", "RECORD", "RECORD", "STATE", "SCHEMA", "RECORD", "STATE", "RECORD", "STATE"]
    assert kinds([json.loads(line) for line in lines]) == whole


@pytest.mark.parametrize("config", [BATCHES, {"mode": "record"}, {"batch_config": DOCUMENTED}])
def test_tap_conforms_to_producer_rules(source: ListedSource, config: Any) -> None:
    assert broken_rules(printed(tap_class(source)(config=config)), MESSAGE_SCHEMA) == []


@pytest.mark.parametrize("mode", ["batch", "record"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_tap_resumes_after_state(source: ListedSource, mode: str, count: int) -> None:
    config = {"mode": mode}
    whole = sent(source, config=config)
    state = state_after(source, count, **config)
    rest = sent(source, config=config, state=state)
    all_data = [one for one in whole if one["type"] == mode.upper()]
    resumed = [one for one in rest if one["type"] == mode.upper()]
    assert resumed == all_data[len(all_data) - 3 + count :]
    assert rest[-1 if resumed else 0] == whole[-1]
    message = {"type": "STATE", "value": state}
    assert sent(source, config=config, state=message) == rest


def test_tap_without_published_batches_sends_schema_and_state() -> None:
    empty = ListedSource([])
    messages = sent(empty, config=BATCHES)
    assert kinds(messages) == ["SCHEMA", "STATE"]
    assert messages[1]["value"] == {"bookmarks": {"orders": {"publish_number": 0}}}
    assert kinds(sent(empty, config=BATCHES, state=messages[1]["value"])) == ["STATE", "SCHEMA"]


@pytest.mark.parametrize("mode", ["batch", "record"])
def test_empty_batch_is_sent_as_state_only(source: ListedSource, mode: str) -> None:
    """No SCHEMA is sent either, because the schema may have no columns yet."""
    empty = replace(source.manifests[0], part_files=())
    assert kinds(sent(ListedSource([empty]), config={"mode": mode})) == ["STATE"]
    mixed = sent(ListedSource([empty, source.manifests[1]]), config={"mode": mode})
    assert kinds(mixed) == ["STATE", "SCHEMA", mode.upper(), "STATE"]


def test_tap_without_backfills_sends_incremental_job_only(source: ListedSource) -> None:
    messages = sent(source, config={**BATCHES, "backfills": False})
    assert [one["job"] for one in messages if one["type"] == "BATCH"] == ["orders", "orders"]


def test_alias_is_used_in_messages_but_not_in_state(source: ListedSource) -> None:
    source.stream = stream(alias="sales")
    assert catalog(source)["streams"][0]["tap_stream_id"] == "orders"
    for mode in ("batch", "record"):
        messages = sent(source, config={"mode": mode})
        assert {one["stream"] for one in messages if "stream" in one} == {"sales"}
        assert list(messages[-1]["value"]["bookmarks"]) == ["orders"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "RECORD"),
        ({"mode": "record", "batch_config": DOCUMENTED}, "RECORD"),
        ({"mode": {"orders": "record"}, "batch_config": DOCUMENTED}, "RECORD"),
        ({"mode": {}, "batch_config": DOCUMENTED}, "BATCH"),
        ({"mode": {"orders": "batch"}}, "BATCH"),
        ({"mode": None, "batch_config": None}, "RECORD"),
        ({"batch_config": {"encoding": {"format": "jsonl"}}}, "BATCH"),
    ],
)
def test_mode_follows_configuration(source: ListedSource, config: Any, expected: str) -> None:
    """As in the SDK, `batch_config` selects BATCH; `mode` overrides it."""
    sent_kinds = set(kinds(sent(source, config=config))) - {"SCHEMA", "STATE"}
    assert sent_kinds == {expected}


def test_mode_is_read_from_the_environment(
    source: ListedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAP_BATCH_PIPELINE_MODE", "batch")
    assert kinds(sent(source, parse_env_config=True))[:2] == ["SCHEMA", "BATCH"]


def test_deselected_column_is_never_sent_unless_it_is_a_key(source: ListedSource) -> None:
    selection = catalog(source, price=False)
    lines = printed(tap_class(source)(config=BATCHES, catalog=selection))
    assert not [line for line in lines if b"price" in line or b"1234567890" in line]
    messages = [json.loads(line) for line in lines]
    records = [one["record"] for one in messages if one["type"] == "RECORD"]
    assert records == [{"order_id": number} for number in (1, 2, 3, 1)]
    with_key = sent(source, config=BATCHES, catalog=catalog(source, order_id=False))
    assert kinds(with_key)[:2] == ["SCHEMA", "BATCH"]


def test_deselected_stream_is_not_sent(source: ListedSource) -> None:
    selection = catalog(source)
    selection["streams"][0]["metadata"][-1]["metadata"]["selected"] = False
    assert selection["streams"][0]["metadata"][-1]["breadcrumb"] == []
    assert sent(source, config=BATCHES, catalog=selection) == []


def test_bookmark_does_not_advance_before_batch_is_written(
    source: ListedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = tap_class(source)(config=BATCHES)
    states_before: list[Any] = []
    write = tap.write_message

    def record_state(message: Any) -> None:
        states_before.append((message.type.value, copy.deepcopy(tap.state["bookmarks"]["orders"])))
        write(message)

    monkeypatch.setattr(tap, "write_message", record_state)
    printed(tap)
    numbers = [(kind, state["publish_number"]) for kind, state in states_before if kind == "BATCH"]
    assert numbers == [("BATCH", 0), ("BATCH", 1), ("BATCH", 2)]


class SignallingSource(ListedSource):
    """A source that sends SIGTERM to this process before the second batch."""

    def published(
        self, stream: str, bookmark: Bookmark, *, backfills: bool
    ) -> Iterator[tuple[int, Manifest]]:
        for number, one in super().published(stream, bookmark, backfills=backfills):
            if number == 2:
                signal.raise_signal(signal.SIGTERM)
            yield number, one


@pytest.mark.parametrize(
    ("mode", "expected", "sent_up_to"),
    [
        ("batch", ["SCHEMA", "BATCH", "STATE", "SCHEMA", "BATCH", "STATE"], 2),
        ("record", ["SCHEMA", "RECORD", "RECORD", "STATE", "SCHEMA", "RECORD"], 1),
    ],
)
def test_sigterm_stops_tap_between_messages_with_state(
    source: ListedSource,
    capsysbinary: pytest.CaptureFixture[bytes],
    mode: str,
    expected: list[str],
    sent_up_to: int,
) -> None:
    tap = tap_class(SignallingSource(source.manifests))(config={"mode": mode})
    with pytest.raises(SystemExit) as exit_:
        tap.sync_all()
    messages = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert exit_.value.code == 128 + signal.SIGTERM
    assert kinds(messages) == expected
    [*_, last] = [one["value"] for one in messages if one["type"] == "STATE"]
    assert last["bookmarks"]["orders"]["publish_number"] == sent_up_to


def test_second_signal_stops_tap_immediately(source: ListedSource) -> None:
    tap_class(source)(config=BATCHES)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_bookmark_is_never_empty_while_it_advances(source: ListedSource) -> None:

    class NeverCleared(dict[str, Any]):
        def clear(self) -> None:
            raise AssertionError("the state was temporarily empty")

    state = NeverCleared(publish_number=0)
    unsent = PendingManifests(source.published, "orders", state, from_start=False, backfills=True)
    for number, manifest in unsent:
        assert unsent.advance(number, manifest)
    assert (state["job"], state["publish_number"]) == ("orders.2023", 1)
    assert state["other_jobs"] == {"orders": 2}


def test_full_table_replication_starts_from_the_first_batch(source: ListedSource) -> None:
    """The state is ignored."""
    selection = catalog(source)
    selection["streams"][0]["replication_method"] = "FULL_TABLE"
    state = state_after(source, 3, **BATCHES)
    messages = sent(source, config=BATCHES, catalog=selection, state=state)
    assert kinds(messages).count("BATCH") == 3
    assert "ACTIVATE_VERSION" not in kinds(messages)


@pytest.mark.parametrize("key", ["at", "order_id", "unknown"])
def test_replication_key_of_catalog_is_ignored(source: ListedSource, key: str) -> None:
    """The state has a bookmark of a batch and no value of a column."""
    timed = schema_of(order_id="integer", at="timestamp")
    source.manifests = [replace(source.manifests[0], schema=timed)]
    selection = catalog(source)
    selection["streams"][0]["replication_key"] = key
    options: dict[str, Any]
    for options in ({}, {"state": state_after(source, 1)}):
        messages = sent(source, config=BATCHES, catalog=selection, **options)
        assert messages == sent(source, config=BATCHES, **options)


def test_batch_config_with_another_encoding_is_rejected(source: ListedSource) -> None:
    """Files are not re-encoded; the message names `encoding` of the stream file, or the batch."""
    for encoding, problem in (
        ({"format": "parquet"}, "was requested as parquet, but `encoding` in the stream file is"),
        ({"format": "jsonl", "compression": "none"}, "requested as jsonl with none, but"),
    ):
        with pytest.raises(ConfigurationError, match=problem) as caught:
            sent(source, config={"batch_config": {**DOCUMENTED, "encoding": encoding}})
        assert "Files are not encoded again" in str(caught.value)
    source.manifests = [replace(source.manifests[0], encoding=ENCODINGS[3])]
    with pytest.raises(ConfigurationError, match="in batch 00000001-00000003, generation 1,"):
        sent(source, config={"batch_config": DOCUMENTED})


def test_invalid_configuration_is_rejected(source: ListedSource) -> None:
    for config in (
        {"batch_config": {"encoding": {"format": "avro"}}},
        {"batch_config": {"encoding": {"format": "jsonl", "level": 1}}},
        *({"batch_config": {"rows": 1}}, {"mode": "both"}, {"mode": {"orders": "both"}}),
    ):
        with pytest.raises(ConfigValidationError):
            tap_class(source)(config=config)


def test_unsupported_option_or_unknown_stream_is_rejected(source: ListedSource) -> None:
    """Stream maps of the tap would not be applied to published files."""
    options: list[tuple[dict[str, Any], str]] = [
        ({"stream_maps": {"orders": {"price": "md5(price)"}}}, "Write `stream_maps` into"),
        ({"flattening_enabled": True}, "Write `flattening_enabled` into"),
        ({"streams": ["clicks"]}, r"no stream clicks \(streams there: orders\)\. Nothing was sent"),
        ({"streams": ["ordres"]}, r"streams there: orders\)\. Did you mean 'orders'\? Nothing was"),
        ({"mode": {"ordres": "batch"}}, "^mode: there is no stream ordres"),
    ]
    for config, message in options:
        with pytest.raises(ConfigurationError, match=message):
            tap_class(source)(config=config)


def test_unknown_keys_and_streams_are_ignored_with_a_warning(
    source: ListedSource, caplog: pytest.LogCaptureFixture
) -> None:
    """An orchestrator may add keys, and a catalog may be older than the stream files."""
    selection = catalog(source)
    stale = {**copy.deepcopy(selection["streams"][0]), "tap_stream_id": "order", "stream": "order"}
    selection["streams"].append(stale)
    config = {**BATCHES, "backfils": False, "load_method": "secret"}
    messages = sent(source, config=config, catalog=selection)
    assert kinds(messages).count("BATCH") == 3
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warnings[:2] == [
        "config: the unknown key 'backfils' is ignored. Did you mean 'backfills'?",
        "config: the unknown key 'load_method' is ignored.",
    ]
    assert [text.partition(",")[0] for text in warnings[2:]] == [
        "catalog: nothing is sent for 'order'"
    ]


def test_state_of_another_tap_is_rejected(source: ListedSource) -> None:
    """Starting from the first batch would deliver all batches twice."""
    states: list[tuple[dict[str, Any], str]] = [
        ({"orders": {"publish_number": 1}}, "has no object `bookmarks`"),
        ({"value": {"orders": {"publish_number": 1}}}, "has no object `bookmarks`"),
        ({"bookmarks": {"orders": [1]}}, "bookmark of 'orders' is not an object"),
        ({"bookmarks": {"orders": {"replication_key": "id"}}}, "the tap: bookmark of 'orders'"),
    ]
    for state, problem in states:
        with pytest.raises(ConfigurationError, match=problem):
            sent(source, config=BATCHES, state=state)
    start = sent(source, config=BATCHES, state={"bookmarks": {"orders": None}})
    assert kinds(start).count("BATCH") == 3


@pytest.mark.parametrize("mode", ["batch", "record"])
def test_batch_with_missing_file_is_not_sent(source: ListedSource, mode: str) -> None:
    part_paths(source.manifests[1])[0].unlink()
    tap = tap_class(source)(config={"mode": mode})
    messages = [json.loads(line) for line in printed(tap, until=BatchDataError)]
    of_records = ["SCHEMA", "RECORD", "RECORD", "STATE", "SCHEMA"]
    assert kinds(messages) == (["SCHEMA", "BATCH", "STATE"] if mode == "batch" else of_records)
    assert tap.state["bookmarks"]["orders"]["publish_number"] == 1


def collecting_target(collected: list[Any]) -> Target:
    """Return a target of the SDK that reads the files of BATCH messages into a list."""

    class CollectingSink(BatchSink):
        """A sink that collects the records of files."""

        def process_batch(self, context: dict[str, Any]) -> None:
            """Collect the records of a file."""
            collected.extend(context["records"])

    class CollectingTarget(Target):
        """A target that collects the records of all streams."""

        name = "target-collecting"
        default_sink_class = CollectingSink

    return CollectingTarget(config={})


@pytest.mark.parametrize("encoding", [ENCODINGS[0], ENCODINGS[3], ENCODINGS[6]], ids=encoding_id)
def test_target_of_the_sdk_loads_batches_of_the_tap(
    tmp_path: Path, encoding: Encoding, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = table(pa.record_batch({"order_id": pa.array([1, 2, 3])}))
    one = published_table(tmp_path / "a b%20c", rows, record_schema(), encoding)
    source = ListedSource([one], stream(encoding=encoding))
    lines = printed(tap_class(source)(config=BATCHES))
    collected: list[Any] = []
    collecting_target(collected).listen(io.StringIO(b"".join(lines).decode()))
    assert collected == [{"order_id": number} for number in (1, 2, 3)]
    message = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(message) == json.loads(lines[-1])["value"]


class FilteredStream(PublishedStream):
    """A stream with the batches of backfills and an additional batch."""

    def get_batches(
        self, batch_config: BatchConfig, context: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[BaseBatchFileEncoding, list[str]]]:
        """Omit batches that are not of backfills, and add a batch."""
        for encoding, files in super().get_batches(batch_config, context):
            if getattr(files, "facts", {})["job"] != self.name:
                yield encoding, files
        yield batch_config.encoding, ["file:///of/the/test"]


def test_subclass_can_override_get_batches(source: ListedSource) -> None:
    tap = tap_class(source, FilteredStream)(config=BATCHES)
    messages = [json.loads(line) for line in printed(tap)]
    batches = [one for one in messages if one["type"] == "BATCH"]
    assert batches[0] == batch_message(source.manifests[2], name="orders")
    sdk_keys = {name: batches[0][name] for name in ("type", "stream", "encoding")}
    assert batches[1] == {**sdk_keys, "manifest": ["file:///of/the/test"]}
    assert messages[0]["type"] == "SCHEMA"
    states = [one["value"]["bookmarks"]["orders"] for one in messages if one["type"] == "STATE"]
    assert states[-1] == state_after(source, 3, **BATCHES)["bookmarks"]["orders"]


class DoubledStream(PublishedStream):
    """A stream that changes its records."""

    def post_process(
        self, row: dict[str, Any], context: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Omit one record and double the id of the others."""
        return None if row["order_id"] == 2 else {**row, "order_id": 2 * row["order_id"]}


def test_subclass_can_override_post_process(source: ListedSource) -> None:
    lines = printed(tap_class(source, DoubledStream)(config={}))
    messages = [json.loads(line) for line in lines]
    records = [one["record"]["order_id"] for one in messages if one["type"] == "RECORD"]
    assert records == [2, 6, 2]
    assert [line for line in lines if b"12345678901234567890.10" in line]
    assert messages[-1] == sent(source, config={})[-1]


@pytest.mark.parametrize("text", [None, "{", "[1]"])
@pytest.mark.parametrize("name", ["config", "catalog", "state"])
def test_unreadable_file_exits_with_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str | None,
) -> None:
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["tap-batch-pipeline", f"--{name}", str(path)])
    with signals_restored(), pytest.raises(SystemExit) as exit_:
        run_tap()
    error = capsys.readouterr().err
    if text is None and name != "config":
        assert exit_.value.code == 2  # click opens them
    else:
        assert exit_.value.code == 1
        assert f"Error: The {name} cannot be read: " in error
        assert error.endswith(". Nothing was done. Correct it and start again.\n")
    assert "Traceback" not in error
