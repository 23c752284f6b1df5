"""The Singer target: keeps records, files and STATE in the order in which the tap said them.

STATE is printed when everything before it is durable and registered, and never before. Where
streams land is told by `Places`, which a subclass opens; the meta table is behind them.
"""

import secrets
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from singer_sdk import Target
from singer_sdk.exceptions import InvalidJSONSchema
from singer_sdk.helpers._batch import BaseBatchFileEncoding
from singer_sdk.helpers.capabilities import (
    CapabilitiesEnum,
    PluginCapabilities,
    TargetCapabilities,
)
from singer_sdk.mapper import RemoveRecordTransform, SameRecordTransform, StreamMap

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.location import is_object, to_path
from batch_pipeline.domain.stream import SourceFormat
from batch_pipeline.singer.incoming.values import (
    ActivateVersionMessage,
    BatchMessage,
    RecordMessage,
    SchemaMessage,
    StateMessage,
)
from batch_pipeline.singer.target.config import CONFIG_SCHEMA, TargetConfig, read_config
from batch_pipeline.singer.target.growing import GrowingFile
from batch_pipeline.singer.target.landing_file import LandingFile
from batch_pipeline.singer.target.landing_object import LandingObject
from batch_pipeline.singer.target.places import NewFile, Place, Places
from batch_pipeline.singer.target.reader import Stopped, StrictReader
from batch_pipeline.singer.target.refusals import SchemaUnusableError
from batch_pipeline.singer.target.sink import LandingSink
from batch_pipeline.singer.target.states import States

_ASK_SECONDS = 0.5  # how soon a signal is heard while the tap says nothing

Route = tuple[LandingSink, StreamMap | None]


class LandingTarget(Target):
    """Lands RECORDs and BATCHes of any tap. A subclass says where by `open_places`."""

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
        self.places: Places = self.open_places(self.settings)
        self.line = 0
        self._run = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        self._files = 0
        self._next_due = float("inf")
        self._states = States()
        self._routes: dict[str, list[Route]] = {}
        self._schemas: dict[str, SchemaMessage] = {}
        self._told_to_stop: int | None = None
        self.message_reader.max_line_bytes = self.settings.max_line_bytes
        self.message_reader.idle = self._idle
        self.message_reader.failed = self._abandon

    def open_places(self, settings: TargetConfig) -> Places:
        """Give where streams land; nothing is opened before it is needed."""
        raise NotImplementedError

    # What the tap says

    def _process_schema_message(self, message_dict: Any) -> None:
        message: SchemaMessage = message_dict
        known = self._schemas.get(message.stream)
        self.line = message.line
        if known is not None and _shape(known) == _shape(message):
            return
        self._land(self._sinks())  # one that is replaced is asked no more; streams may share it
        said = {
            "stream": message.stream,
            "schema": dict(message.schema),
            "key_properties": list(message.key_properties),
        }
        try:
            super()._process_schema_message(said)
        except InvalidJSONSchema as error:
            problem = f"is no JSON Schema ({error})"
            raise SchemaUnusableError(message.line, problem, message.stream, "schema") from error
        self._schemas[message.stream] = message
        self._routes = {name: self._routes_of(name) for name in self._schemas}

    def _process_record_message(self, message_dict: Any) -> None:
        message: RecordMessage = message_dict
        self.line = message.line
        for sink, stream_map in self._routes[message.stream]:
            sink.take_mapped(message, stream_map, message.text)
        if time.monotonic() >= self._next_due:
            self._land_due()
        if self._told_to_stop is not None:
            raise Stopped

    def _process_batch_message(self, message_dict: Any) -> None:
        message: BatchMessage = message_dict
        self.line = message.line
        encoding = BaseBatchFileEncoding(
            format=message.encoding.format.value,
            compression=None
            if message.encoding.compression is None
            else message.encoding.compression.value,
        )
        for sink, stream_map in self._routes[message.stream]:
            self._land([sink])  # what came before has to have the smaller id
            sink.batch = message, stream_map
            try:
                sink.process_batch_files(encoding, list(message.manifest))
            finally:
                sink.batch = None
        self._print_state()

    def _process_state_message(self, message_dict: Any) -> None:
        message: StateMessage = message_dict
        self.line = message.line
        self._states.receive(message.line, message.text, pending=self._pending())
        self._print_state()

    def _process_activate_version_message(self, message_dict: Any) -> None:
        message: ActivateVersionMessage = message_dict
        self.line = message.line
        for sink, _ in self._routes[message.stream]:
            self._land([sink])
            if sink.process_activate_version_messages:
                sink.activate_version(message.version)

    def process_endofpipe(self) -> None:
        """Land and register what is left, then print the last STATE."""
        try:
            self._land(self._sinks())
            for sink in [*self._sinks_to_clear, *self._sinks_active.values()]:
                sink.clean_up()
        except BaseException:
            self._abandon()
            raise
        self.places.close()
        if self._told_to_stop is not None:
            sys.exit(128 + self._told_to_stop)

    # What sinks ask for

    def new_file(self, sink: LandingSink) -> GrowingFile:
        """Give a sink a new file to write to.

        Raises:
            LandingFailedError: it cannot be made.
        """
        encoding = self._encoding(sink.place)
        file = self.new_landing_file(sink.place, f".{encoding.suffix}")
        growing = GrowingFile(file, encoding, self.settings.bounds, sink.schema)
        self._next_due = min(self._next_due, growing.due_at)
        return growing

    def new_landing_file(self, place: Place, suffix: str) -> NewFile:
        """Start a file with a name that no other run gives, in the order in which files come.

        Raises:
            LandingFailedError: it cannot be made.
        """
        self._files += 1
        name = f"{place.stream}-{self._run}-{self._files:06d}{suffix}"
        if is_object(place.root):
            return LandingObject(place.root, name)
        return LandingFile(Path(to_path(place.root)), name)

    def is_removed(self, stream: str) -> bool:
        """Tell whether stream maps let nothing of a stream through, as far as SCHEMAs have come."""
        maps = [one for several in self.mapper.stream_maps.values() for one in several]
        named = [one for one in maps if one.stream_alias == stream]
        return bool(named) and all(isinstance(one, RemoveRecordTransform) for one in named)

    def land(self, sink: LandingSink) -> None:
        """Land what a sink has written, and print what may be printed then."""
        self._land([sink])

    # What nobody asks for

    def _routes_of(self, stream: str) -> list[Route]:
        routes: list[Route] = []
        for stream_map in self.mapper.stream_maps[stream]:
            sink = self._sinks_active.get(stream_map.stream_alias)
            if isinstance(sink, LandingSink):
                is_same = type(stream_map) is SameRecordTransform
                is_plain = is_same and not stream_map.flattening_enabled
                routes.append((sink, None if is_plain else stream_map))
        return routes

    def _encoding(self, place: Place) -> Encoding:
        """Give the configured encoding, or the usual one of the only format that a stream reads."""
        encoding = self.settings.encoding
        match place.format:
            case SourceFormat.JSONL if encoding.format is not Format.JSONL:
                return Encoding(format=Format.JSONL, compression=Compression.GZIP)
            case SourceFormat.PARQUET if encoding.format is not Format.PARQUET:
                return Encoding(format=Format.PARQUET, compression=Compression.SNAPPY)
            case _:
                return encoding

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
        dues = {sink: sink.due_at for sink in self._sinks()}
        self._land([sink for sink, due in dues.items() if due is not None and due <= now])
        left = [sink.due_at for sink in self._sinks()]
        self._next_due = min((due for due in left if due is not None), default=float("inf"))

    def _idle(self) -> float:
        if self._told_to_stop is not None:
            raise Stopped
        if time.monotonic() >= self._next_due:
            self._land_due()
        return max(0.0, min(_ASK_SECONDS, self._next_due - time.monotonic()))

    def _print_state(self) -> None:
        text = self._states.printable(min(self._pending(), default=None))
        if text is not None:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
            failpoint("target.after_state")

    def _abandon(self) -> None:
        for sink in self._sinks():
            sink.abandon()
        self.places.close()

    def _handle_termination(self, signum: int, frame: FrameType | None) -> None:
        """Let the reading loop end between two lines; a second signal ends at once."""
        if self._told_to_stop is not None:
            signal.signal(signum, signal.SIG_DFL)
            raise KeyboardInterrupt
        self._told_to_stop = signum


def _shape(message: SchemaMessage) -> tuple[Any, ...]:
    return message.schema, message.key_properties
