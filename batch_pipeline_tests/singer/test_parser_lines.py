"""Splitting the output of a tap into lines."""

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.singer.parser import MessageError, lines


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


@pytest.mark.parametrize("text", [b"12345\n", b"12345", b"a\n12345\n"])
def test_line_over_size_limit_is_rejected_with_number(text: bytes) -> None:
    with pytest.raises(MessageError, match="is longer than") as caught:
        list(lines(io.BytesIO(text), max_bytes=4))
    assert caught.value.line == text.count(b"\n", 0, text.index(b"1")) + 1
    assert "`max_line_bytes`" in str(caught.value)


@pytest.mark.parametrize("text", [b"1234\n", b"1234", b"a\n1234\n"])
def test_line_at_size_limit_is_read(text: bytes) -> None:
    assert list(lines(io.BytesIO(text), max_bytes=4))[-1] == b"1234"


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
