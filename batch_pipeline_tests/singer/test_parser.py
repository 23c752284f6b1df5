"""Parsing lines of other taps, and rejected lines."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.singer.parser import (
    ActivateVersionMessage,
    BatchEncoding,
    BatchMessage,
    Message,
    MessageError,
    MessageReader,
    RecordMessage,
    SchemaMessage,
    StateMessage,
)

SCHEMA = b'{"type":"SCHEMA","stream":"orders","schema":{"properties":{}},"key_properties":["id"]}'


def _reader() -> MessageReader:
    reader = MessageReader()
    reader.read(SCHEMA, 1)
    return reader


def _error_of(line: bytes) -> MessageError:
    with pytest.raises(MessageError) as caught:
        _reader().read(line, 7)
    return caught.value


def _batch(**changed: Any) -> bytes:
    message: dict[str, Any] = {
        "type": "BATCH",
        "stream": "orders",
        "encoding": {"format": "jsonl", "compression": "gzip"},
        "manifest": ["file:///a.jsonl.gz"],
    }
    return json.dumps(message | changed).encode()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param(
            SCHEMA,
            SchemaMessage(
                line=2, stream="orders", schema={"properties": {}}, key_properties=("id",)
            ),
            id="schema",
        ),
        pytest.param(
            _batch(batch_id="x", sha256=["ab"]),
            BatchMessage(
                line=2,
                stream="orders",
                encoding=BatchEncoding(format=Format.JSONL, compression=Compression.GZIP),
                manifest=("file:///a.jsonl.gz",),
                sha256=("ab",),
            ),
            id="batch with keys of its writer",
        ),
        pytest.param(
            b'{"type":"STATE","value":{"b": 1.50, "a": 1}}',
            StateMessage(line=2, text='{"b": 1.50, "a": 1}', value={"b": Decimal("1.50"), "a": 1}),
            id="state with its text",
        ),
        pytest.param(
            b'{"type":"ACTIVATE_VERSION","stream":"orders","version":5}',
            ActivateVersionMessage(line=2, stream="orders", version=5),
            id="version",
        ),
    ],
)
def test_line_is_parsed_as_message(line: bytes, message: Message) -> None:
    assert _reader().read(line, 2) == message


@pytest.mark.parametrize("keys", [b"null", b"[]"])
def test_schema_line_without_keys_has_none(keys: bytes) -> None:
    read = MessageReader().read(SCHEMA.replace(b'["id"]', keys), 1)
    assert isinstance(read, SchemaMessage)
    assert read.key_properties == ()


def test_record_line_keeps_text_and_digits() -> None:
    text = b'{"id": 123456789012345678901234567890, "price": 1.10, "a":null}'
    line = b'{"type":"RECORD","stream":"orders","record":' + text + b',"version":3,"mine":[1]}'
    read = _reader().read(line, 2)
    assert read == RecordMessage(
        2,
        "orders",
        text,
        {"id": 123456789012345678901234567890, "price": Decimal("1.10"), "a": None},
        version=3,
    )
    assert isinstance(read, RecordMessage)
    assert str(read.record["price"]) == "1.10"


def test_record_line_with_escaped_colons_is_parsed() -> None:
    line = rb'{"type":"RECORD","stream":"orders","record":{"a\u003ab":"\u003a:"}}'
    read = _reader().read(line, 2)
    assert isinstance(read, RecordMessage)
    assert read.record == {"a:b": "::"}


@pytest.mark.parametrize(
    ("line", "message", "key"),
    [
        (b"", "is not JSON (", None),
        (b"starting up", "is not JSON (", None),
        (b'{"type":"STATE","value":{"a":NaN}}', "is not JSON (", None),
        (b'{"type":"STATE","value":{"a":"\xff"}}', "is not JSON (", None),
        (b'{"type":"STATE","value":{"a":' + b"[" * 5000, "is not JSON (", None),
        (b'{"type":"STATE","value":{"a":' + b"1" * 5000 + b"}}", "is not JSON (", None),
        (rb'{"type":"STATE","value":{"a":"\ud800"}}', "is not JSON (", None),
        (b"[1]", "expected a JSON object", None),
        (b'"RECORD"', "expected a JSON object", None),
        (b'{"type":"RECORDS"}', "expected SCHEMA, ", "type"),
        (b'{"stream":"orders"}', "is missing;", "type"),
        (b'{"type":1}', "; expected ", "type"),
        (b'{"type":"STATE"}', "is missing;", "value"),
        (b'{"type":"STATE","value":null}', "; expected ", "value"),
        (b'{"type":"SCHEMA","stream":"a"}', "is missing;", "schema"),
        (b'{"type":"SCHEMA","stream":"a","schema":{}}', "is missing;", "schema.properties"),
        (b'{"type":"SCHEMA","stream":"","schema":{}}', "; expected ", "stream"),
        (b'{"type":"RECORD","stream":"orders"}', "is missing;", "record"),
        (b'{"type":"RECORD","stream":"orders","record":[1]}', "; expected ", "record"),
        (b'{"type":"RECORD","stream":7,"record":{}}', "; expected ", "stream"),
        (
            b'{"type":"RECORD","stream":"orders","record":{},"version":true}',
            "; expected ",
            "version",
        ),
        (
            b'{"type":"RECORD","stream":"orders","record":{},"time_extracted":7}',
            "; expected `str | null`",
            "time_extracted",
        ),
        (b'{"type":"RECORD","stream":"x","record":{}}', "Have the tap write SCHEMA first", None),
        (b'{"type":"RECORD","stream":"orders","record":{"a":1,"a":2}}', "is duplicated", "a"),
        (b'{"type":"RECORD","stream":"orders","stream":"x","record":{}}', "is duplicated", None),
        (
            rb'{"type":"RECORD","stream":"orders","record":{"a\u003a":1,"a:":2}}',
            "is duplicated",
            "a:",
        ),
        (b'{"type":"ACTIVATE_VERSION","stream":"orders","version":1.0}', "; expected ", "version"),
        (_batch(stream="x"), "Have the tap write SCHEMA first", None),
        (_batch(manifest=[]), "is empty", "manifest"),
        (_batch(manifest=["a", "a"]), "has 'a' twice", "manifest"),
        (_batch(manifest="a"), "; expected ", "manifest"),
        (_batch(manifest=[""]), "; expected an array, each element `str`", "manifest"),
        (_batch(encoding={"compression": "gzip"}), "is missing", "encoding.format"),
        (
            _batch(encoding={"compression": "gzip", "format": "csv"}),
            "is 'csv'; expected jsonl",
            "encoding.format",
        ),
        (_batch(encoding={"format": "avro"}), "Set `batch_config.encoding`", "encoding.format"),
        (
            _batch(encoding={"format": "jsonl", "compression": "bz2"}),
            "Set `batch_config.encoding`",
            "encoding.compression",
        ),
        (
            _batch(encoding={"format": "jsonl", "level": 1}),
            "Set `batch_config.encoding`",
            "encoding.level",
        ),
        (_batch(encoding="jsonl"), "; expected ", "encoding"),
    ],
)
def test_invalid_line_is_rejected_with_line_and_key(
    line: bytes, message: str, key: str | None
) -> None:
    error = _error_of(line)
    assert message in str(error)
    assert error.line == 7
    if key is not None:
        assert error.key == key
    assert str(error).startswith("Line 7")
    assert "run again from the last STATE" in str(error)


def test_message_of_missing_manifest() -> None:
    line = b'{"type":"BATCH","stream":"orders","encoding":{"format":"jsonl"}}'
    assert str(_error_of(line)) == (
        "Line 7, stream 'orders', key `manifest`: is missing; the message cannot be understood "
        "without it. Nothing after the last printed STATE was saved. Correct the "
        "program that wrote the line, then run again from the last STATE that was printed."
    )


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_KEYS = ["type", "stream", "record", "schema", "value", "version", "encoding", "manifest"]
_TYPES = ["SCHEMA", "RECORD", "BATCH", "STATE", "ACTIVATE_VERSION"]
_MESSAGES = st.dictionaries(st.sampled_from(_KEYS), _JSON, max_size=8).flatmap(
    lambda drawn: st.builds(
        lambda kind, stream: {**drawn, "type": kind, "stream": stream},
        st.sampled_from(_TYPES),
        st.sampled_from(["orders", "other"]),
    )
)


def _message_or_error(line: bytes) -> str:
    try:
        return str(_reader().read(line, 2))
    except PipelineError as error:
        return str(error)


@given(st.binary(max_size=200) | _MESSAGES.map(lambda drawn: json.dumps(drawn).encode()))
def test_any_bytes_are_a_message_or_a_pipeline_error(line: bytes) -> None:
    assert _message_or_error(line)


@given(st.dictionaries(st.text(max_size=8), _JSON, max_size=6))
def test_any_record_is_parsed_like_json(record: dict[str, Any]) -> None:
    text = json.dumps(record)
    line = f'{{"type":"RECORD","stream":"orders","record":{text}}}'.encode()
    try:
        read = _reader().read(line, 2)
    except MessageError as error:
        assert "is not JSON (" in str(error)  # noqa: PT017 - the error is one of two outcomes
        assert any(word in text for word in ("NaN", "Infinity", "\\ud"))
        return
    assert isinstance(read, RecordMessage)
    assert read.record == json.loads(text, parse_float=Decimal)
    assert read.text == text.encode()


@given(st.lists(st.sampled_from(["a", "b", "c:", "d\\u003a", "e"]), min_size=1, max_size=5))
def test_record_is_rejected_only_for_duplicate_keys(keys: list[str]) -> None:
    """No value is lost silently."""
    text = ",".join(f'"{key}":{{"{keys[0]}":":"}}' for key in keys)
    line = f'{{"type":"RECORD","stream":"orders","record":{{{text}}}}}'.encode()
    if len(set(keys)) == len(keys):
        assert isinstance(_reader().read(line, 2), RecordMessage)
    else:
        with pytest.raises(MessageError, match="is duplicated"):
            _reader().read(line, 2)
