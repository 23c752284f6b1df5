"""The target as a Singer SDK plugin: reads messages, routes records to sinks, prints STATE.

`LandingTarget` is the plugin, `StrictReader` its message reader, `PendingStates` the queue of
STATEs. A STATE is printed only when all earlier records are durable and registered.
"""

import secrets
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import IO, Any, ClassVar

from singer_sdk import Target
from singer_sdk.exceptions import (
    InvalidJSONSchema,
    MappingError,
    RecordsWithoutSchemaException,
)
from singer_sdk.helpers._batch import BaseBatchFileEncoding
from singer_sdk.helpers.capabilities import CapabilitiesEnum, PluginCapabilities, TargetCapabilities
from singer_sdk.io_base import GenericSingerReader
from singer_sdk.mapper import RemoveRecordTransform, SameRecordTransform, StreamMap

from batch_pipeline.model.encoding import PART_FORMATS, Encoding, Format
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline.singer import parser
from batch_pipeline.singer.parser import (
    MAX_LINE_BYTES,
    ActivateVersionMessage,
    BatchMessage,
    Message,
    MessageError,
    MessageReader,
    RecordMessage,
    SchemaMessage,
    StateMessage,
    lines,
)
from batch_pipeline.singer.plugin import SingerPlugin
from batch_pipeline.singer.target.config import (
    CONFIG_SCHEMA,
    AnnouncedStream,
    StreamLanding,
    TargetConfig,
    read_config,
)
from batch_pipeline.singer.target.landing_files import LandingFile, RollingFile, rolling_file
from batch_pipeline.singer.target.sink import LandingSink

_SIGNAL_POLL_SECONDS = 0.5  # how soon a signal is noticed while the tap is silent
_CORRECT_SCHEMA = "Correct the SCHEMA, or set `validate_records: false`"
_MESSAGE_TYPES = {message: name for name, message in parser.MESSAGES.items()}
Route = tuple[LandingSink, StreamMap | None]


class RecordWithoutSchemaError(MessageError, RecordsWithoutSchemaException):
    """Records or files that precede the SCHEMA of their stream; a class the SDK's tests expect."""


class StopRequested(Exception):  # noqa: N818 - a request, not an error
    """A request to end the target; records received so far are landed."""


class StrictReader(GenericSingerReader[bytes]):
    """A reader of a tap's output. The target sets the callbacks that run between lines.

    `idle` does work that is due and returns the seconds until its next call. `failed` is called
    when a line is invalid.
    """

    max_line_bytes: int = MAX_LINE_BYTES
    idle: Callable[[], float]
    failed: Callable[[], None]

    @property
    def default_input(self) -> IO[bytes]:
        """Standard input."""
        return sys.stdin.buffer

    def deserialize_json(self, line: bytes) -> dict[str, Any]:
        """Parse a line of JSON exactly."""
        value: dict[str, Any] = parser.parse(line)
        return value

    def process_lines(
        self,
        file_input: IO[Any] | None,
        callbacks: dict[Any, Callable[[Any], None]],
    ) -> Counter[str]:
        """Pass each message to the callback of its type; return the message counts by type.

        Raises:
            MessageError: a line is invalid.
        """
        called = {kind: callbacks[name] for kind, name in _MESSAGE_TYPES.items()}
        counts: Counter[type] = Counter()
        try:
            for message in self._messages(file_input or self.default_input):
                kind = type(message)
                called[kind](message)
                counts[kind] += 1
        except StopRequested:
            pass
        except BaseException:
            self.failed()
            raise
        return Counter({_MESSAGE_TYPES[kind]: count for kind, count in counts.items()})

    def _messages(self, source: IO[Any]) -> Iterator[Message]:
        reader = MessageReader(schema_missing=RecordWithoutSchemaError)
        cut = lines(source, max_bytes=self.max_line_bytes, idle=self.idle)
        for number, line in enumerate(cut, start=1):
            yield reader.read(line, number)


class PendingStates:
    """A queue of STATEs that were received but not printed yet."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, str]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def receive(self, line: int, text: str, *, pending: Collection[int]) -> None:
        """Add a STATE; `pending` are the first lines of records that have not landed.

        If none of these lines is between two STATEs, only the newer STATE is kept, because both
        become printable at the same time.
        """
        self._waiting.append((line, text))
        newest = {sum(at < state[0] for at in pending): state for state in self._waiting}
        self._waiting = deque(newest.values())

    def printable(self, oldest_pending: int | None) -> str | None:
        """Remove and return the newest STATE before the first pending line, or None."""
        newest: str | None = None
        while self._waiting and (oldest_pending is None or self._waiting[0][0] < oldest_pending):
            newest = self._waiting.popleft()[1]
        return newest


class LandingTarget(SingerPlugin, Target):
    """A target that lands RECORDs and BATCHes. Subclasses implement `landing_of`."""

    name = "target-batch-pipeline"
    config_jsonschema: ClassVar[dict[str, Any]] = CONFIG_SCHEMA
    default_sink_class = LandingSink
    message_reader_class = StrictReader
    message_reader: StrictReader
    capabilities: ClassVar[list[CapabilitiesEnum]] = [
        PluginCapabilities.ABOUT,
        PluginCapabilities.STREAM_MAPS,
        PluginCapabilities.FLATTENING,
        PluginCapabilities.STRUCTURED_LOGGING,
        PluginCapabilities.BATCH,
        PluginCapabilities.ACTIVATE_VERSION,
        TargetCapabilities.VALIDATE_RECORDS,
    ]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        known = self.config_jsonschema["properties"]
        self.settings: TargetConfig = read_config(dict(self.config), known)
        self.line = 0
        self._run = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        self._files = 0
        self._next_due = float("inf")
        self._pending_states = PendingStates()
        self._routes: dict[str, list[Route]] = {}
        self._schemas: dict[str, SchemaMessage] = {}
        self.message_reader.max_line_bytes = self.settings.read_limits.max_record_bytes
        self.message_reader.idle = self._idle
        self.message_reader.failed = self._abandon

    def landing_of(self, wanted: AnnouncedStream) -> StreamLanding:
        """Return the landing of a stream; create it if there is none.

        Raises:
            ConfigurationError: the landing does not accept the stream or cannot be created.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release resources that `landing_of` has opened."""

    # Messages of the tap

    def _process_schema_message(self, message_dict: Any) -> None:
        message: SchemaMessage = message_dict
        known = self._schemas.get(message.stream)
        self.line = message.line
        if known is not None and replace(known, line=message.line) == message:
            return
        self._land(self._sinks())  # replaced sinks are not used again; streams may share a sink
        message_object = {
            "stream": message.stream,
            "schema": deepcopy(message.schema),  # the SDK adds metadata columns to it
            "key_properties": list(message.key_properties),
        }
        try:
            super()._process_schema_message(message_object)
        except InvalidJSONSchema as error:
            problem, step = f"is not a JSON Schema ({error})", _CORRECT_SCHEMA
            raise MessageError(message.line, problem, message.stream, "schema", step) from error
        except MappingError as error:
            problem, step = f"does not fit `stream_maps` ({error})", "Correct one of them"
            raise MessageError(message.line, problem, message.stream, "schema", step) from error
        self._schemas[message.stream] = message
        self._routes = {name: self._routes_of(name) for name in self._schemas}

    def _process_record_message(self, message_dict: Any) -> None:
        message: RecordMessage = message_dict
        self.line = message.line
        for sink, stream_map in self._routes[message.stream]:
            sink.accept_mapped(message, stream_map, message.text)
        if time.monotonic() >= self._next_due:
            self._land_due()
        if self.stop_signal is not None:
            raise StopRequested

    def _process_batch_message(self, message_dict: Any) -> None:
        message: BatchMessage = message_dict
        self.line = message.line
        compression = message.encoding.compression
        encoding = BaseBatchFileEncoding(
            format=message.encoding.format.value, compression=compression and compression.value
        )
        for sink, stream_map in self._routes[message.stream]:
            self._land([sink])  # earlier records need smaller ids
            sink.batch = message, stream_map
            try:
                sink.process_batch_files(encoding, list(message.manifest))
            finally:
                sink.batch = None
        self._print_state()

    def _process_state_message(self, message_dict: Any) -> None:
        message: StateMessage = message_dict
        self.line = message.line
        self._pending_states.receive(message.line, message.text, pending=self._pending())
        self._print_state()

    def _process_activate_version_message(self, message_dict: Any) -> None:
        message: ActivateVersionMessage = message_dict
        self.line = message.line
        for sink, _ in self._routes[message.stream]:
            self._land([sink])
            if sink.process_activate_version_messages:
                sink.activate_version(message.version)

    def process_endofpipe(self) -> None:
        """Land and register the remaining records, then print the last STATE."""
        try:
            self._land(self._sinks())
            for sink in [*self._sinks_to_clear, *self._sinks_active.values()]:
                sink.clean_up()
        except BaseException:
            self._abandon()
            raise
        self.close()
        if self.stop_signal is not None:
            sys.exit(128 + self.stop_signal)

    # Called by sinks

    def new_file(self, sink: LandingSink) -> RollingFile:
        """Create a file for a sink's records.

        Raises:
            ConfigurationError: the file cannot be created.
        """
        encoding = self.encoding_of(sink.landing)
        file = self.new_landing_file(sink.landing, f".{encoding.suffix}")
        rolling = rolling_file(file, encoding, self.settings.bounds, sink.schema)
        self._next_due = min(self._next_due, rolling.due_at)
        return rolling

    def new_landing_file(self, landing: StreamLanding, suffix: str) -> LandingFile:
        """Create a file with a name that is unique across runs and ordered within this run.

        Raises:
            ConfigurationError: the file cannot be created.
        """
        self._files += 1
        name = f"{landing.stream}-{self._run}-{self._files:06d}{suffix}"
        return LandingFile(landing.root, name)

    def is_removed(self, stream: str) -> bool:
        """Return whether stream maps remove the whole stream, given the SCHEMAs read so far."""
        maps = [item for listed in self.mapper.stream_maps.values() for item in listed]
        of_stream = [item for item in maps if item.stream_alias == stream]
        return bool(of_stream) and all(
            isinstance(item, RemoveRecordTransform) for item in of_stream
        )

    def land(self, sink: LandingSink) -> None:
        """Land the records of a sink and print the STATE that has become printable."""
        self._land([sink])

    # Internal methods

    def _routes_of(self, stream: str) -> list[Route]:
        routes: list[Route] = []
        for stream_map in self.mapper.stream_maps[stream]:
            sink = self._sinks_active.get(stream_map.stream_alias)
            if isinstance(sink, LandingSink):
                is_same = type(stream_map) is SameRecordTransform
                is_plain = is_same and not stream_map.flattening_enabled
                routes.append((sink, None if is_plain else stream_map))
        return routes

    def encoding_of(self, landing: StreamLanding) -> Encoding:
        """Return the configured encoding, or the default of the only format that a stream reads."""
        configured = self.settings.encoding
        if landing.format in (SourceFormat.AUTO, configured.format.value):
            return configured
        file_format = Format(landing.format.value)
        return Encoding(format=file_format, compression=PART_FORMATS[file_format].compressions[0])

    def _sinks(self) -> list[LandingSink]:
        return [sink for sink in self._sinks_active.values() if isinstance(sink, LandingSink)]

    def _pending(self) -> list[int]:
        return [sink.first_line for sink in self._sinks() if sink.first_line is not None]

    def _land(self, sinks: list[LandingSink]) -> None:
        for sink in sinks:
            sink.land()
        self._print_state()

    def _land_due(self) -> None:
        now = time.monotonic()
        self._land([sink for sink in self._sinks() if sink.due_at <= now])
        self._next_due = min((sink.due_at for sink in self._sinks()), default=float("inf"))

    def _idle(self) -> float:
        if self.stop_signal is not None:
            raise StopRequested
        if time.monotonic() >= self._next_due:
            self._land_due()
        return max(0.0, min(_SIGNAL_POLL_SECONDS, self._next_due - time.monotonic()))

    def _print_state(self) -> None:
        text = self._pending_states.printable(min(self._pending(), default=None))
        if text is not None:
            sys.stdout.buffer.write(f"{text}\n".encode())  # Singer's are UTF-8 in any locale
            sys.stdout.buffer.flush()
            failpoint("target.after_state")

    def _abandon(self) -> None:
        for sink in self._sinks():
            sink.abandon()
        self.close()
