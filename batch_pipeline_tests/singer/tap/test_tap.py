"""The tap over listed manifests: what it sends, in which mode, and what it refuses."""

import copy
import io
import json
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from singer_sdk import BatchSink, Target
from singer_sdk.exceptions import ConfigValidationError
from singer_sdk.helpers._batch import BaseBatchFileEncoding, BatchConfig

from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import BatchDataError, ConfigurationError
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.singer.bookmarks import Bookmark
from batch_pipeline.singer.messages import JSON_SCHEMA, batch_message
from batch_pipeline.singer.tap.stream import PendingManifests, PublishedStream
from batch_pipeline.singer.tap.tap import PublishedTap
from batch_pipeline_tests.conformance.rules import broken_rules
from batch_pipeline_tests.encode.writers.part_factories import table
from batch_pipeline_tests.encode.writers.published_parts import (
    ENCODINGS,
    encoding_id,
    part_paths,
    published_lines,
    published_table,
)
from batch_pipeline_tests.factories import batch, record_schema, stream
from batch_pipeline_tests.singer.tap.tap_fixture import ListedSource, printed, sent, tap_class

OURS = json.loads(JSON_SCHEMA.read_text(encoding="utf-8"))
BATCHES = {"mode": "batch"}
DOCUMENTED = {
    "encoding": {"format": "jsonl", "compression": "gzip"},
    "storage": {"root": "file:///somewhere/else", "prefix": "my-batch-"},
    "batch_size": 10,
}


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Put back what the SDK does with signals when a tap is made."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def source(tmp_path: Path) -> ListedSource:
    """Two batches, the second with a column more, and a backfill."""
    wide = record_schema("order_id", "price")
    big = b'{"order_id":3,"price":12345678901234567890.10}'
    return ListedSource(
        [
            published_lines(tmp_path / "1", b'{"order_id":1}', b'{"order_id":2}'),
            published_lines(tmp_path / "2", big, batch=batch(4, 6), schema=wide, schema_version=2),
            published_lines(
                tmp_path / "3", b'{"order_id":1}', batch=batch(1, 3, job="orders.2023"), schema=wide
            ),
        ]
    )


def kinds(messages: list[dict[str, Any]]) -> list[str]:
    """Return the types of messages."""
    return [message["type"] for message in messages]


def state_after(source: ListedSource, count: int, **config: Any) -> Any:
    """Return the state after so many batches."""
    states = [one for one in sent(source, config=config) if one["type"] == "STATE"]
    return states[count - 1]["value"]


def catalog(source: ListedSource, **selected: bool) -> dict[str, Any]:
    """Discover, and select or deselect columns."""
    found: dict[str, Any] = tap_class(source)(config={}).catalog_dict
    for entry in found["streams"][0]["metadata"]:
        breadcrumb = entry["breadcrumb"]
        if breadcrumb and breadcrumb[1] in selected:
            entry["metadata"]["selected"] = selected[breadcrumb[1]]
    return found


def test_tap_in_batch_mode_sends_manifests_as_they_are(source: ListedSource) -> None:
    messages = sent(source, config=BATCHES)
    assert kinds(messages) == ["SCHEMA", "BATCH", "STATE"] * 2 + ["BATCH", "STATE"]
    assert [one for one in messages if one["type"] == "BATCH"] == [
        batch_message(one, name="orders") for one in source.manifests
    ]
    assert messages[-1]["value"]["bookmarks"]["orders"] == {
        "job": "orders.2023",
        "batch_id": "00000001-00000003",
        "generation": 1,
        "publish_number": 1,
        "other_jobs": {"orders": 2},
    }


def test_tap_in_record_mode_sends_the_text_of_records(source: ListedSource) -> None:
    lines = printed(tap_class(source)(config={}))
    assert lines[1] == b'{"type":"RECORD","stream":"orders","record":{"order_id":1}}\n'
    assert b'"price":12345678901234567890.10}}\n' in lines[5]
    found = kinds([json.loads(line) for line in lines])
    assert found[:4] == ["SCHEMA", "RECORD", "RECORD", "STATE"]
    assert found[4:] == ["SCHEMA", "RECORD", "STATE", "RECORD", "STATE"]


@pytest.mark.parametrize("config", [BATCHES, {"mode": "record"}, {"batch_config": DOCUMENTED}])
def test_tap_keeps_the_rules_of_producers(source: ListedSource, config: Any) -> None:
    assert broken_rules(printed(tap_class(source)(config=config)), OURS) == []


@pytest.mark.parametrize("mode", ["batch", "record"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_tap_resumes_with_exactly_the_rest(source: ListedSource, mode: str, count: int) -> None:
    config = {"mode": mode}
    whole = sent(source, config=config)
    state = state_after(source, count, **config)
    rest = sent(source, config=config, state=state)
    said = [one for one in whole if one["type"] in {"BATCH", "RECORD"}]
    again = [one for one in rest if one["type"] in {"BATCH", "RECORD"}]
    assert again == (said[-len(again) :] if again else [])
    assert len(again) == (3 - count if mode == "batch" else {1: 2, 2: 1, 3: 0}[count])
    assert rest[-1 if again else 0] == whole[-1]


def test_tap_without_anything_published_says_a_state_only() -> None:
    empty = ListedSource([])
    messages = sent(empty, config=BATCHES)
    assert kinds(messages) == ["SCHEMA", "STATE"]
    assert messages[1]["value"] == {"bookmarks": {"orders": {"publish_number": 0}}}
    assert kinds(sent(empty, config=BATCHES, state=messages[1]["value"])) == ["STATE", "SCHEMA"]


@pytest.mark.parametrize("mode", ["batch", "record"])
def test_tap_moves_the_state_past_an_empty_batch(source: ListedSource, mode: str) -> None:
    """Expect no BATCH without files, and no SCHEMA, which may have no columns yet."""
    empty = replace(source.manifests[0], part_files=())
    assert kinds(sent(ListedSource([empty]), config={"mode": mode})) == ["STATE"]
    several = sent(ListedSource([empty, source.manifests[1]]), config={"mode": mode})
    assert kinds(several) == ["STATE", "SCHEMA", mode.upper(), "STATE"]


def test_tap_without_backfills_sends_the_streams_own_only(source: ListedSource) -> None:
    messages = sent(source, config={**BATCHES, "backfills": False})
    assert [one["job"] for one in messages if one["type"] == "BATCH"] == ["orders", "orders"]


def test_tap_with_another_name_in_messages_keeps_the_own_one_in_state(
    source: ListedSource,
) -> None:
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
        ({"mode": {"clicks": "record"}, "batch_config": DOCUMENTED}, "BATCH"),
        ({"mode": {"orders": "batch"}}, "BATCH"),
        ({"mode": None, "batch_config": None}, "RECORD"),
        ({"batch_config": {"encoding": {"format": "jsonl"}}}, "BATCH"),
    ],
)
def test_tap_chooses_the_mode_that_is_configured(
    source: ListedSource, config: Any, expected: str
) -> None:
    """Expect BATCH with a `batch_config` as in the SDK, unless `mode` says otherwise."""
    found = set(kinds(sent(source, config=config))) - {"SCHEMA", "STATE"}
    assert found == {expected}


def test_tap_never_sends_a_column_that_the_catalog_deselects(source: ListedSource) -> None:
    chosen = catalog(source, price=False)
    lines = printed(tap_class(source)(config=BATCHES, catalog=chosen))
    assert not [line for line in lines if b"price" in line or b"1234567890" in line]
    found = [json.loads(line) for line in lines]
    assert [one["record"] for one in found if one["type"] == "RECORD"] == [
        {"order_id": number} for number in (1, 2, 3, 1)
    ]


def test_tap_sends_a_key_whatever_the_catalog_says_of_it(source: ListedSource) -> None:
    messages = sent(source, config=BATCHES, catalog=catalog(source, order_id=False))
    assert kinds(messages)[:2] == ["SCHEMA", "BATCH"]


def test_tap_sends_nothing_of_a_stream_that_is_deselected(source: ListedSource) -> None:
    chosen = catalog(source)
    chosen["streams"][0]["metadata"][-1]["metadata"]["selected"] = False
    assert chosen["streams"][0]["metadata"][-1]["breadcrumb"] == []
    assert sent(source, config=BATCHES, catalog=chosen) == []


def test_tap_stopped_while_it_writes_a_batch_does_not_count_it_as_sent(
    source: ListedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = tap_class(source)(config=BATCHES)
    seen: list[Any] = []
    write = tap.write_message

    def watched(message: Any) -> None:
        seen.append((message.type.value, copy.deepcopy(tap.state["bookmarks"]["orders"])))
        write(message)

    monkeypatch.setattr(tap, "write_message", watched)
    printed(tap)
    numbers = [(kind, state["publish_number"]) for kind, state in seen if kind == "BATCH"]
    assert numbers == [("BATCH", 0), ("BATCH", 1), ("BATCH", 2)]


class SignallingSource(ListedSource):
    """Sends this process a SIGTERM before it gives the second batch."""

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
def test_tap_told_to_end_ends_between_two_messages_with_its_state(
    source: ListedSource,
    capsysbinary: pytest.CaptureFixture[bytes],
    mode: str,
    expected: list[str],
    sent_up_to: int,
) -> None:
    tap = tap_class(SignallingSource(source.manifests))(config={"mode": mode})
    with pytest.raises(SystemExit) as ended:
        tap.sync_all()
    found = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert ended.value.code == 128 + signal.SIGTERM
    assert kinds(found) == expected
    [*_, last] = [one["value"] for one in found if one["type"] == "STATE"]
    assert last["bookmarks"]["orders"]["publish_number"] == sent_up_to


def test_tap_told_to_end_twice_ends_at_once(source: ListedSource) -> None:
    tap_class(source)(config=BATCHES)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_bookmark_is_never_empty_while_it_moves(source: ListedSource) -> None:

    class Watched(dict[str, Any]):
        def clear(self) -> None:
            raise AssertionError("the state was empty for a moment")

    state = Watched(publish_number=0)
    unsent = PendingManifests(source, "orders", state, from_start=False, backfills=True)
    for number, manifest in unsent:
        assert unsent.advance(number, manifest)
    assert (state["job"], state["publish_number"]) == ("orders.2023", 1)
    assert state["other_jobs"] == {"orders": 2}


def test_tap_in_full_table_mode_starts_from_the_first_batch(source: ListedSource) -> None:
    """Expect a catalog that asks for everything to get it, whatever the state says."""
    chosen = catalog(source)
    chosen["streams"][0]["replication_method"] = "FULL_TABLE"
    state = state_after(source, 3, **BATCHES)
    messages = sent(source, config=BATCHES, catalog=chosen, state=state)
    assert kinds(messages).count("BATCH") == 3
    assert "ACTIVATE_VERSION" not in kinds(messages)


def test_catalog_of_the_tap_has_keys_and_newest_columns(source: ListedSource) -> None:
    [entry] = catalog(source)["streams"]
    assert entry["key_properties"] == ["order_id"]
    assert list(entry["schema"]["properties"]) == ["order_id", "price"]
    assert (entry["replication_method"], entry["stream"]) == ("INCREMENTAL", "orders")


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ({"format": "parquet"}, "is to be sent as parquet, and `encoding` in the stream file is"),
        ({"format": "jsonl", "compression": "none"}, "sent as jsonl with none, and"),
    ],
)
def test_tap_refuses_a_batch_config_with_another_encoding(
    source: ListedSource, encoding: Any, told: str
) -> None:
    """Expect the stream file's `encoding` to be named: files are not encoded again."""
    config = {"batch_config": {**DOCUMENTED, "encoding": encoding}}
    with pytest.raises(ConfigurationError, match=told) as caught:
        sent(source, config=config)
    assert "Files are not encoded again" in str(caught.value)


def test_tap_refuses_a_batch_that_was_written_with_another_encoding(source: ListedSource) -> None:
    encoding = Encoding(format=Format.PARQUET, compression=Compression.SNAPPY)
    source.manifests = [replace(source.manifests[0], encoding=encoding)]
    with pytest.raises(ConfigurationError, match="in batch 00000001-00000003, generation 1,"):
        sent(source, config={"batch_config": DOCUMENTED})


@pytest.mark.parametrize(
    "config",
    [
        {"batch_config": {"encoding": {"format": "avro"}}},
        {"batch_config": {"encoding": {"format": "jsonl", "level": 1}}},
        {"batch_config": {"rows": 1}},
        {"mode": "both"},
        {"mode": {"orders": "both"}},
    ],
)
def test_tap_refuses_a_configuration_that_says_nothing(source: ListedSource, config: Any) -> None:
    with pytest.raises(ConfigValidationError):
        tap_class(source)(config=config)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"stream_maps": {"orders": {"price": "md5(price)"}}}, "Write `stream_maps` into"),
        ({"flattening_enabled": True}, "Write `flattening_enabled` into"),
        ({"flattening_max_depth": 1}, "Write `flattening_max_depth` into"),
        ({"streams": ["clicks"]}, r"no stream clicks \(streams there: orders\)"),
    ],
)
def test_tap_refuses_what_it_cannot_do(source: ListedSource, config: Any, told: str) -> None:
    """Expect stream maps, which would not reach the files, and unknown streams to be refused."""
    with pytest.raises(ConfigurationError, match=told):
        tap_class(source)(config=config)


def test_tap_refuses_a_state_of_another_tap(source: ListedSource) -> None:
    """Expect no start from the first batch, which would deliver all twice."""
    state = {"bookmarks": {"orders": {"replication_key": "id", "replication_key_value": 7}}}
    with pytest.raises(
        ConfigurationError, match="the state given to the tap: bookmark of 'orders'"
    ):
        sent(source, config=BATCHES, state=state)


def test_tap_takes_a_whole_state_message(source: ListedSource) -> None:
    state = state_after(source, 2, **BATCHES)
    rest = sent(source, config=BATCHES, state=state)
    assert kinds(rest).count("BATCH") == 1
    assert sent(source, config=BATCHES, state={"type": "STATE", "value": state}) == rest


def test_tap_takes_a_bookmark_that_is_null_for_the_start(source: ListedSource) -> None:
    messages = sent(source, config=BATCHES, state={"bookmarks": {"orders": None}})
    assert kinds(messages).count("BATCH") == 3


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"orders": {"publish_number": 1}}, "has no object `bookmarks`"),
        ({"value": {"orders": {"publish_number": 1}}}, "has no object `bookmarks`"),
        ({"bookmarks": {"orders": [1]}}, "bookmark of 'orders' is not an object"),
    ],
)
def test_tap_refuses_a_state_without_bookmarks(
    source: ListedSource, state: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        tap_class(source)(config=BATCHES, state=state)


@pytest.mark.parametrize("mode", ["batch", "record"])
def test_tap_sends_nothing_of_a_batch_whose_file_is_gone(source: ListedSource, mode: str) -> None:
    part_paths(source.manifests[1])[0].unlink()
    tap = tap_class(source)(config={"mode": mode})
    found = [json.loads(line) for line in printed(tap, until=BatchDataError)]
    assert kinds(found)[-1] == ("STATE" if mode == "batch" else "SCHEMA")
    first = ["SCHEMA", "BATCH", "STATE"] if mode == "batch" else ["SCHEMA", "RECORD", "RECORD"]
    assert kinds(found)[:3] == first
    assert len(found) == (3 if mode == "batch" else 5)
    assert tap.state["bookmarks"]["orders"]["publish_number"] == 1


def keeping_target(kept: list[Any]) -> Target:
    """Make a target of the SDK, which reads BATCH messages as they come with it."""

    class KeepingSink(BatchSink):
        """Keeps the records of files."""

        def process_batch(self, context: dict[str, Any]) -> None:
            """Keep the records of a file."""
            kept.extend(context["records"])

    class KeepingTarget(Target):
        """Keeps the records of all streams."""

        name = "target-keeping"
        default_sink_class = KeepingSink

    return KeepingTarget(config={})


@pytest.mark.parametrize("encoding", [ENCODINGS[0], ENCODINGS[3], ENCODINGS[6]], ids=encoding_id)
def test_target_of_the_sdk_loads_what_the_tap_sends(
    tmp_path: Path, encoding: Encoding, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = table(pa.record_batch({"order_id": pa.array([1, 2, 3])}))
    one = published_table(tmp_path / "a b%20c", rows, record_schema(), encoding)
    source = ListedSource([one], stream(encoding=encoding))
    lines = printed(tap_class(source)(config=BATCHES))
    kept: list[Any] = []
    keeping_target(kept).listen(io.StringIO(b"".join(lines).decode()))
    assert kept == [{"order_id": number} for number in (1, 2, 3)]
    told = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(told) == json.loads(lines[-1])["value"]


class FilteredStream(PublishedStream):
    """Batches of backfills alone, and one of the test's own."""

    def get_batches(
        self, batch_config: BatchConfig, context: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[BaseBatchFileEncoding, list[str]]]:
        """Leave batches out, and add one."""
        for encoding, files in super().get_batches(batch_config, context):
            if getattr(files, "facts", {})["job"] != self.name:
                yield encoding, files
        yield batch_config.encoding, ["file:///of/the/test"]


class FilteredTap(PublishedTap):
    """A tap with streams of its own."""

    stream_class = FilteredStream


def test_get_batches_of_a_subclass_works_as_in_the_sdk(source: ListedSource) -> None:
    tap = tap_class(source, FilteredTap)(config=BATCHES)
    messages = [json.loads(line) for line in printed(tap)]
    batches = [one for one in messages if one["type"] == "BATCH"]
    assert batches[0] == batch_message(source.manifests[2], name="orders")
    assert batches[1] == {
        "type": "BATCH",
        "stream": "orders",
        "encoding": {"format": "jsonl", "compression": "gzip"},
        "manifest": ["file:///of/the/test"],
    }
    assert messages[0]["type"] == "SCHEMA"
    states = [one["value"]["bookmarks"]["orders"] for one in messages if one["type"] == "STATE"]
    assert states[-1] == state_after(source, 3, **BATCHES)["bookmarks"]["orders"]


class DoubledStream(PublishedStream):
    """Records with a value of the test's own."""

    def post_process(
        self, row: dict[str, Any], context: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Leave a record out, double the others."""
        return None if row["order_id"] == 2 else {**row, "order_id": 2 * row["order_id"]}


class DoubledTap(PublishedTap):
    """A tap with streams of its own."""

    stream_class = DoubledStream


def test_post_process_of_a_subclass_works_as_in_the_sdk(source: ListedSource) -> None:
    lines = printed(tap_class(source, DoubledTap)(config={}))
    messages = [json.loads(line) for line in lines]
    records = [one["record"]["order_id"] for one in messages if one["type"] == "RECORD"]
    assert records == [2, 6, 2]
    assert [line for line in lines if b"12345678901234567890.10" in line]
    assert messages[-1] == sent(source, config={})[-1]


def test_tap_knows_its_manifests_by_the_files_it_announces(source: ListedSource) -> None:
    announced = [
        uri
        for one in sent(source, config=BATCHES)
        if one["type"] == "BATCH"
        for uri in one["manifest"]
    ]
    files: list[Manifest] = list(source.manifests)
    assert announced == [f"file://{path}" for one in files for path in part_paths(one)]
