"""Cutting what a tap writes into lines, and reading `batch_config`."""

import io
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.singer.parser import MessageError, lines
from batch_pipeline.singer.target.config import read_batch_config


@given(st.lists(st.binary(max_size=20).filter(lambda one: b"\n" not in one), max_size=8))
def test_lines_of_a_pipe_are_those_that_were_written(written: list[bytes]) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as source:
        os.write(write, b"\n".join(written))
        os.close(write)
        expected = b"\n".join(written).split(b"\n")
        assert list(lines(source)) == (expected if expected[-1] else expected[:-1])


def test_lines_of_text_in_memory_are_utf_8() -> None:
    assert list(lines(io.StringIO("é\nb"))) == ["é".encode(), b"b"]


@pytest.mark.parametrize("text", [b"12345\n", b"12345", b"a\n12345\n"])
def test_line_beyond_the_limit_is_refused_by_number(text: bytes) -> None:
    with pytest.raises(MessageError, match="is longer than") as caught:
        list(lines(io.BytesIO(text), max_bytes=4))
    assert caught.value.line == text.count(b"\n", 0, text.index(b"1")) + 1
    assert "`max_line_bytes`" in str(caught.value)


@pytest.mark.parametrize("text", [b"1234\n", b"1234", b"a\n1234\n"])
def test_line_as_long_as_the_limit_is_read(text: bytes) -> None:
    assert list(lines(io.BytesIO(text), max_bytes=4))[-1] == b"1234"


def test_pipe_without_news_is_asked_again_after_each_wait() -> None:
    read, write = os.pipe()
    asked: list[int] = []

    def idle() -> float:
        asked.append(1)
        if len(asked) == 3:
            os.write(write, b"late\n")
            os.close(write)
        return 0.0

    with os.fdopen(read, "rb") as source:
        assert list(lines(source, idle=idle)) == [b"late"]
    assert len(asked) >= 3


def test_batch_config_of_the_documentation_is_taken_as_it_is() -> None:
    written = {
        "encoding": {"format": "jsonl", "compression": "gzip"},
        "storage": {"root": "s3://b/x", "prefix": "p-", "params": {"endpoint_url": "http://h"}},
        "batch_size": 20,
    }
    assert read_batch_config(written) == "s3://b/x"
    assert read_batch_config({}) is None


@pytest.mark.parametrize(
    ("written", "key"),
    [
        (None, "batch_config"),
        ({"storge": {}}, "batch_config.storge"),
        ({"encoding": {"format": "csv"}}, "batch_config.encoding.format"),
        ({"encoding": {"format": "jsonl", "level": 3}}, "batch_config.encoding.level"),
        ({"encoding": {}}, "batch_config.encoding.format"),
        ({"storage": {"prefix": "a"}}, "batch_config.storage.root"),
        ({"storage": {"root": "/a", "prefix": 1}}, "batch_config.storage.prefix"),
        ({"storage": {"root": "/a", "params": []}}, "batch_config.storage.params"),
        ({"batch_size": 0}, "batch_config.batch_size"),
        ({"batch_size": True}, "batch_config.batch_size"),
    ],
)
def test_batch_config_with_a_mistake_is_refused_by_key(written: Any, key: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        read_batch_config(written)
    assert caught.value.name == key


def test_batch_config_with_a_typing_mistake_is_told_the_near_key() -> None:
    with pytest.raises(InvalidValueError, match="did you mean storage"):
        read_batch_config({"storge": {}})
