"""Hands the lines of a tap, read strictly, to the target; an SDK message reader by its methods."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, Any

from singer_sdk.io_base import GenericSingerReader

from batch_pipeline.singer.incoming import json_text
from batch_pipeline.singer.incoming.lines import MAX_LINE_BYTES, lines
from batch_pipeline.singer.incoming.reading import MessageReader
from batch_pipeline.singer.incoming.refusals import SchemaMissingError
from batch_pipeline.singer.incoming.values import (
    ActivateVersionMessage,
    BatchMessage,
    Message,
    RecordMessage,
    SchemaMessage,
    StateMessage,
)
from batch_pipeline.singer.target.refusals import RecordWithoutSchemaError

_KINDS: dict[type, str] = {
    RecordMessage: "RECORD",
    SchemaMessage: "SCHEMA",
    StateMessage: "STATE",
    BatchMessage: "BATCH",
    ActivateVersionMessage: "ACTIVATE_VERSION",
}


class Stopped(Exception):  # noqa: N818 - no error: somebody asked for it
    """The target was told to end; what was received is to be landed."""


class StrictReader(GenericSingerReader[bytes]):
    """Reads a tap's output. The target that it belongs to sets what happens between lines.

    `idle` does what is due and gives the seconds until it is to be asked again; `failed` is called
    when a line cannot be taken.
    """

    max_line_bytes: int = MAX_LINE_BYTES
    idle: Callable[[], float]
    failed: Callable[[], None]

    @property
    def default_input(self) -> IO[bytes]:
        """Standard input."""
        return sys.stdin.buffer

    def deserialize_json(self, line: bytes) -> dict[str, Any]:
        """Read a line of JSON exactly."""
        value: dict[str, Any] = json_text.parse(line)
        return value

    def process_lines(
        self,
        file_input: IO[Any] | None,
        callbacks: dict[Any, Callable[[Any], None]],
    ) -> Counter[str]:
        """Give each message to the callback of its type, as a value; counts them by type.

        Raises:
            MessageError: a line cannot be taken.
        """
        called = {kind: callbacks[name] for kind, name in _KINDS.items()}
        counts: Counter[type] = Counter()
        try:
            for message in self._messages(file_input or self.default_input):
                kind = type(message)
                called[kind](message)
                counts[kind] += 1
        except Stopped:
            pass
        except BaseException:
            self.failed()
            raise
        return Counter({_KINDS[kind]: count for kind, count in counts.items()})

    def _messages(self, source: IO[Any]) -> Iterator[Message]:
        reader = MessageReader()
        cut = lines(source, max_bytes=self.max_line_bytes, idle=self.idle)
        for number, line in enumerate(cut, start=1):
            try:
                message = reader.read(line, number)
            except SchemaMissingError as error:
                raise RecordWithoutSchemaError(number, error.problem, error.stream) from error
            yield message
