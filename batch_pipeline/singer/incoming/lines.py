"""Cuts a tap's output into lines of bounded length, and tells when nothing comes.

Nothing is parsed here.
"""

import os
import select
from collections.abc import Callable, Iterator
from typing import IO, Any

from batch_pipeline.singer.incoming.refusals import LineTooLongError

MAX_LINE_BYTES = 64 * 2**20
_CHUNK = 256 * 1024


def lines(
    source: IO[Any], *, max_bytes: int = MAX_LINE_BYTES, idle: Callable[[], float] | None = None
) -> Iterator[bytes]:
    """Give the lines of a file or pipe without their endings; a last one may lack its.

    `idle` gives the seconds to wait for more, and is asked again after each wait in vain; it may do
    what is due meanwhile, or raise. Without a descriptor to wait for it is never asked.

    Raises:
        LineTooLongError: a line has more bytes than `max_bytes`.
    """
    number = 0
    rest: list[bytes] = []
    held = 0
    for chunk in _chunks(source, idle):
        pieces = chunk.split(b"\n")
        if len(pieces) > 1:
            number += 1
            _check(held + len(pieces[0]), number, max_bytes)
            yield b"".join([*rest, pieces[0]])
            for piece in pieces[1:-1]:
                number += 1
                _check(len(piece), number, max_bytes)
                yield piece
            rest, held = [], 0
        rest.append(pieces[-1])
        held += len(pieces[-1])
        _check(held, number + 1, max_bytes)
    if held:
        yield b"".join(rest)


def _check(length: int, number: int, max_bytes: int) -> None:
    if length > max_bytes:
        problem = f"is longer than {max_bytes} bytes, the most that is held"
        raise LineTooLongError(number, problem)


def _chunks(source: IO[Any], idle: Callable[[], float] | None) -> Iterator[bytes]:
    descriptor = _descriptor(source)
    if descriptor is None:
        for text in source:
            yield text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return
    while True:
        while idle is not None and not select.select([descriptor], [], [], idle())[0]:
            pass
        chunk = os.read(descriptor, _CHUNK)
        if not chunk:
            return
        yield chunk


def _descriptor(source: IO[Any]) -> int | None:
    """Give the descriptor of a file that has not been read from yet."""
    try:
        return source.fileno()
    except (OSError, AttributeError):  # a file in memory
        return None
