"""Splitting the output of a tap into lines and parsing them."""

import io
import json
import os
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.encoding import Compression, Format
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
    lines,
)

SCHEMA = b'{"type":"SCHEMA","stream":"orders","schema":{"properties":{}},"key_properties":["id"]}'
RECORD = b'{"type":"RECORD","stream":"orders","record":'
STATE = b'{"type":"STATE","value":{"a":'
SET_ENCODING = "Set `batch_config.encoding`"


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


def _encoded(**encoding: object) -> bytes:
    return _batch(encoding=encoding)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            SCHEMA,
            SchemaMessage(
                line=2, stream="orders", schema={"properties": {}}, key_properties=("id",)
            ),
        ),
        (
            _batch(batch_id="x", sha256=["ab"]),
            BatchMessage(
                line=2,
                stream="orders",
                encoding=BatchEncoding(format=Format.JSONL, compression=Compression.GZIP),
                manifest=("file:///a.jsonl.gz",),
                sha256=("ab",),
            ),
        ),
        (
            b'{"type":"STATE","value":{"b": 1.50, "a": 1}}',
            StateMessage(line=2, text='{"b": 1.50, "a": 1}', value={"b": Decimal("1.50"), "a": 1}),
        ),
        (
            b'{"type":"ACTIVATE_VERSION","stream":"orders","version":5}',
            ActivateVersionMessage(line=2, stream="orders", version=5),
        ),
    ],
    ids=["schema", "batch with keys of its writer", "state with its text", "version"],
)
def test_line_is_parsed_as_message(line: bytes, message: Message) -> None:
    assert _reader().read(line, 2) == message


def test_schema_line_without_keys_has_none() -> None:
    for keys in (b"null", b"[]"):
        read = MessageReader().read(SCHEMA.replace(b'["id"]', keys), 1)
        assert isinstance(read, SchemaMessage)
        assert read.key_properties == ()


def test_record_line_keeps_text_and_digits() -> None:
    text = b'{"id": 123456789012345678901234567890, "price": 1.10, "a":null}'
    line = b'{"type":"RECORD","stream":"orders","record":' + text + b',"version":3,"mine":[1]}'
    read = _reader().read(line, 2)
    record = {"id": 123456789012345678901234567890, "price": Decimal("1.10"), "a": None}
    assert read == RecordMessage(2, "orders", text, record, version=3)
    assert isinstance(read, RecordMessage)
    assert str(read.record["price"]) == "1.10"
    line = rb'{"type":"RECORD","stream":"orders","record":{"a\u003ab":"\u003a:"}}'
    read = _reader().read(line, 2)
    assert isinstance(read, RecordMessage)
    assert read.record == {"a:b": "::"}


@pytest.mark.parametrize(
    ("line", "message", "key"),
    [
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
        (RECORD + b"[1]}", "; expected ", "record"),
        (b'{"type":"RECORD","stream":7,"record":{}}', "; expected ", "stream"),
        (RECORD + b'{},"version":true}', "; expected ", "version"),
        (RECORD + b'{},"time_extracted":7}', "; expected `str | null`", "time_extracted"),
        (b'{"type":"RECORD","stream":"x","record":{}}', "Have the tap write SCHEMA first", None),
        (RECORD + b'{"a":1,"a":2}}', "is duplicated", "a"),
        (RECORD + b'{},"stream":"x"}', "is duplicated", None),
        (RECORD + rb'{"a\u003a":1,"a:":2}}', "is duplicated", "a:"),
        (b'{"type":"ACTIVATE_VERSION","stream":"orders","version":1.0}', "; expected ", "version"),
        (_batch(stream="x"), "Have the tap write SCHEMA first", None),
        (_batch(manifest=[]), "is empty", "manifest"),
        (_batch(manifest=["a", "a"]), "has 'a' twice", "manifest"),
        (_batch(manifest="a"), "; expected ", "manifest"),
        (_batch(manifest=[""]), "; expected an array, each element `str`", "manifest"),
        (_encoded(compression="gzip"), "is missing", "encoding.format"),
        (_encoded(compression="gzip", format="csv"), "is 'csv'; expected jsonl", "encoding.format"),
        (_encoded(format="avro"), SET_ENCODING, "encoding.format"),
        (_encoded(format="jsonl", compression="bz2"), SET_ENCODING, "encoding.compression"),
        (_encoded(format="jsonl", level=1), SET_ENCODING, "encoding.level"),
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


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"starting up"),
        *(STATE + b"NaN}}", STATE + b'"\xff"}}', STATE + rb'"\ud800"}}'),
        *(STATE + b"[" * 5000, STATE + b"1" * 5000 + b"}}"),
    ],
    ids=["empty", "text", "NaN", "UTF-8", "surrogate", "depth", "digits"],
)
def test_line_that_is_not_json_is_rejected(line: bytes) -> None:
    assert str(_error_of(line)).startswith("Line 7: is not JSON (")


def test_message_of_missing_manifest() -> None:
    line = b'{"type":"BATCH","stream":"orders","encoding":{"format":"jsonl"}}'
    assert str(_error_of(line)) == (
        "Line 7, stream 'orders', key `manifest`: is missing; the message cannot be understood "
        "without it. Records after the last printed STATE may have landed and arrive twice. "
        "Correct the program that wrote the line, then run again from the last STATE that was "
        "printed."
    )


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


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


@given(st.lists(st.binary(max_size=20).filter(lambda one: b"\n" not in one), max_size=8))
def test_lines_of_pipe(written: list[bytes]) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as source:
        os.write(write, b"\n".join(written))
        os.close(write)
        expected = b"\n".join(written).split(b"\n")
        assert list(lines(source)) == (expected if expected[-1] else expected[:-1])


def test_lines_of_text_in_memory_are_encoded_as_utf_8() -> None:
    assert list(lines(io.StringIO("é\nb"))) == ["é".encode(), b"b"]


@pytest.mark.parametrize(
    ("text", "number"), [(b"1234\n", 1), (b"1234", 1), (b"a\n1234\n", 2), (b"a\nb\n1234", 3)]
)
def test_line_over_size_limit_is_rejected_with_number(text: bytes, number: int) -> None:
    assert list(lines(io.BytesIO(text), max_bytes=4))[-1] == b"1234"
    with pytest.raises(MessageError, match="is longer than") as caught:
        list(lines(io.BytesIO(text), max_bytes=3))
    assert caught.value.line == number
    assert "`max_line_bytes`" in str(caught.value)


def test_idle_is_called_while_pipe_has_no_data() -> None:
    read, write = os.pipe()
    calls: list[int] = []

    def idle() -> float:
        calls.append(1)
        if len(calls) == 3:
            os.write(write, b"late\n")
            os.close(write)
        return 0.0

    with os.fdopen(read, "rb") as source:
        assert list(lines(source, idle=idle)) == [b"late"]
    assert len(calls) >= 3
