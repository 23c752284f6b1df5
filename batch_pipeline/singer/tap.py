"""A Singer tap that emits published batches, each once, as BATCH or RECORD messages.

`PublishedTap` is the tap as a plugin of the Singer SDK; subclasses implement
`offered_streams` and `published`.
`PublishedStream` adapts the SDK's stream, `PendingManifests` tracks the manifests left to send, and
`selected_columns` applies the catalog. The state advances only after all messages of a manifest
were written. `sends_batches` and `check_encoding` interpret the configuration. Its `batch_config`
follows the SDK; the files exist before the tap runs and are never encoded again, so its encoding
has to match that of the files.
"""

import io
import json
import logging
import sys
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, product
from typing import IO, Any, ClassVar

import singer_sdk
from singer_sdk.helpers._batch import BaseBatchFileEncoding, BatchConfig, SDKBatchMessage
from singer_sdk.helpers.capabilities import CapabilitiesEnum, PluginCapabilities, TapCapabilities
from singer_sdk.io_base import SingerWriter
from singer_sdk.singerlib.catalog import (
    REPLICATION_FULL_TABLE,
    REPLICATION_INCREMENTAL,
    MetadataMapping,
)
from singer_sdk.singerlib.encoding import GenericSingerWriter
from singer_sdk.singerlib.encoding.simple import RecordMessage, SchemaMessage

from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.errors import ConfigurationError, did_you_mean
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Stream
from batch_pipeline.singer.messages import (
    Bookmark,
    batch_message,
    bookmark_json,
    parse_bookmark,
    parse_bookmarks,
    schema_message,
    state_file_unusable,
)
from batch_pipeline.singer.part_records import check_sizes, record_blocks, records
from batch_pipeline.singer.plugin import (
    BATCH_CONFIG,
    PIPELINE_SETTINGS,
    SingerPlugin,
    reading_json_object,
    setting,
)

_MODES = ["batch", "record"]


CONFIG_JSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        **PIPELINE_SETTINGS,
        "streams": setting(
            "array",
            "Names of the streams to offer (default: all of the folder).",
            items={"type": "string"},
        ),
        "mode": setting(
            "string object",
            "How batches are sent: `batch`, or `record` for targets that cannot read BATCH "
            "messages; also per stream, as {orders: batch} (default: `batch` with a "
            "batch_config, else `record`).",
            anyOf=[  # with types, by which the SDK reads environment variables
                {"type": ["string", "null"], "enum": [*_MODES, None]},
                {"type": "object", "additionalProperties": {"enum": _MODES}},
            ],
        ),
        "backfills": setting(
            "boolean", "Whether batches of backfills are also sent.", default=True
        ),
        "batch_config": setting(
            "object",
            "The Singer SDK's. `encoding` must be that of the stream file. Files keep the place "
            "and size with which they were published, so `storage` and `batch_size` have no "
            "effect.",
            **BATCH_CONFIG,
        ),
    },
}
_STREAM_FILE_SETTINGS = (
    "stream_maps",
    "stream_map_config",
    "flattening_enabled",
    "flattening_max_depth",
)


def sends_batches(config: Mapping[str, Any], stream: str) -> bool:
    """Return whether BATCH messages are configured for a stream, otherwise RECORD.

    The default depends on `batch_config`, as in the SDK.
    """
    mode = config.get("mode")
    chosen = mode.get(stream) if isinstance(mode, Mapping) else mode
    return bool(config.get("batch_config") if chosen is None else chosen == "batch")


def check_encoding(
    config: Mapping[str, Any], actual: Encoding, *, stream: str, where: str = "the stream file"
) -> None:
    """Check that files have the encoding that `batch_config` requests, if any.

    Raises:
        ConfigurationError: the encodings differ.
    """
    requested = (config.get("batch_config") or {}).get("encoding")
    if not requested:
        return
    text, compression = requested["format"], requested.get("compression")
    if text != actual.format or compression not in (None, actual.compression):
        text = text if compression is None else f"{text} with {compression}"
        problem = (
            f"the stream {stream} was requested as {text}, but `encoding` in {where} is "
            f"{actual.format} with {actual.compression}"
        )
        step = (
            "Files are not encoded again. Omit `encoding` from batch_config, or change it in "
            "the stream file and materialize the batches again; `mode: record` sends any encoding."
        )
        raise unusable_setting("batch_config.encoding", problem, step)


def unusable_setting(setting: str, problem: str, next_step: str) -> ConfigurationError:
    """Build the error for a tap setting that cannot be used."""
    return ConfigurationError(f"{setting}: {problem}. {next_step}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedStream:
    """A stream with the newest schema of its records, empty before the first batch."""

    stream: Stream
    schema: RecordSchema


STATE_SOURCE = "the state given to the tap"
_SDK_KEYS = ("type", "stream", "encoding", "manifest")


class PublishedFiles(list[str]):
    """The files of a published manifest, as the SDK passes them from `get_batches` to a message.

    `facts` are the additional keys of the message; subclasses of the stream may read them.
    """

    def __init__(self, publish_number: int, manifest: Manifest) -> None:
        message = batch_message(manifest)
        super().__init__(message["manifest"])
        self.published = (publish_number, manifest)
        self.facts = {name: value for name, value in message.items() if name not in _SDK_KEYS}


@dataclass(slots=True)
class ExtendedBatchMessage(SDKBatchMessage):
    """A BATCH message with additional top-level keys."""

    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the message with the additional keys beside the SDK's keys."""
        written: dict[str, Any] = super(ExtendedBatchMessage, self).to_dict()
        facts = written.pop("facts")
        return {**written, **facts}


class LineWriter(SingerWriter):
    """The SDK's writer to standard output, extended to write serialized lines."""

    def write_lines(self, lines: bytes) -> None:
        """Write complete lines."""
        sys.stdout.flush()
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()


class PendingManifests:
    """An iterator over the published manifests after a bookmark, in order.

    `published` is the method of the tap. `state` is the stream's part of a STATE value and is kept
    current. `from_start` ignores it.

    Raises:
        ConfigurationError: the state is not a bookmark of this tap.
    """

    def __init__(
        self,
        published: Callable[..., Iterator[tuple[int, Manifest]]],
        stream: str,
        state: MutableMapping[str, Any],
        *,
        from_start: bool,
        backfills: bool,
    ) -> None:
        self._state = state
        if from_start or not state:
            self._bookmark = Bookmark()
            state.clear()
            state["publish_number"] = 0
        else:
            self._bookmark = parse_bookmark(dict(state), stream, path=STATE_SOURCE)
        self._remaining = published(stream, self._bookmark, backfills=backfills)

    def __iter__(self) -> Iterator[tuple[int, Manifest]]:
        """Return the iterator; call `advance` for each manifest before its STATE is written."""
        return self

    def __next__(self) -> tuple[int, Manifest]:
        """Return the next publish number and manifest."""
        return next(self._remaining)

    def peek(self) -> Manifest | None:
        """Return the next manifest without consuming it, or None at the end."""
        following = next(self._remaining, None)
        if following is None:
            return None
        self._remaining = chain((following,), self._remaining)
        return following[1]

    def advance(self, publish_number: int, manifest: Manifest) -> bool:
        """Set the state to this manifest; return False if the state was already there."""
        before, self._bookmark = self._bookmark, self._bookmark.after(manifest, publish_number)
        if self._bookmark == before:
            return False
        written = bookmark_json(manifest, self._bookmark)
        self._state.update(written)  # one call, no clear(): the state may be written at any time
        return True


class PublishedStream(singer_sdk.Stream):
    """The published batches of one stream, resumed after its bookmark."""

    _tap: "PublishedTap"

    def __init__(self, tap: "PublishedTap", offered: OfferedStream) -> None:
        self._offered = offered
        self._announced: tuple[RecordSchema, tuple[str, ...]] | None = None
        super().__init__(tap, schema=offered.schema.json_schema(), name=offered.stream.name)
        self.primary_keys = list(offered.stream.message_keys)
        self.forced_replication_method = REPLICATION_INCREMENTAL

    @property
    def message_name(self) -> str:
        """The stream's name in messages; state and catalog use its own name."""
        return self._offered.stream.message_name

    @property
    def emit_activate_version_messages(self) -> bool:
        """False, because each generation of a batch states what it replaces."""
        return False

    @cached_property
    def columns(self) -> frozenset[str] | None:
        """The columns that the catalog selects, or None for all.

        Raises:
            ConfigurationError: the catalog deselects a part of a column.
        """
        if self._input_schema is None:
            return None
        listed = self._input_schema.get("properties", {})
        newest = self._offered.schema.names
        chosen = selected_columns(self.name, self.metadata, listed=listed, newest=newest)
        missing = [] if chosen is None else [name for name in newest if name not in listed]
        if missing:
            text = "Columns that the catalog does not know are not sent: %s"
            self.log(text, ", ".join(missing), level=logging.WARNING)
        return chosen

    @cached_property
    def _pending_manifests(self) -> PendingManifests:
        backfills = self.config.get("backfills")
        return PendingManifests(
            self._tap.published,
            self.name,
            self.stream_state,
            from_start=self.replication_method == REPLICATION_FULL_TABLE,
            backfills=True if backfills is None else backfills,
        )

    def get_batch_config(self, config: Mapping[str, Any]) -> BatchConfig | None:
        """Return the configuration for sending files, or None to send records instead.

        Files contain all columns. If the catalog deselects columns, records without them are sent.

        Raises:
            ConfigurationError: `batch_config` requests another encoding than the stream file's.
        """
        if not sends_batches(config, self.name):
            return None
        stream = self._offered.stream
        check_encoding(config, stream.encoding, stream=self.name)
        if self.columns is not None:
            text = "The files have columns that the catalog omits, so records are sent"
            self.log(text, level=logging.WARNING)
            return None
        storage = {"root": stream.storage.root, "prefix": stream.storage.prefix}
        return BatchConfig.from_dict({"encoding": stream.encoding.to_json(), "storage": storage})

    def get_batches(
        self, batch_config: BatchConfig, context: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[BaseBatchFileEncoding, list[str]]]:
        """Yield encoding and files of each published batch that was not sent yet.

        Raises:
            BatchDataError: a file is missing or has another size; nothing of its batch is sent.
            ConfigurationError: a batch has another encoding than `batch_config` requests.
        """
        sent = 0
        for number, manifest in self._pending_manifests:
            if manifest.part_files:
                encoding = manifest.encoding
                where = f"batch {manifest.batch.label}, generation {manifest.generation},"
                check_encoding(self.config, encoding, stream=self.name, where=where)
                check_sizes(manifest)
                self._announce(manifest.schema, manifest.key_properties)
                sdk_encoding = BaseBatchFileEncoding(
                    encoding.format.value, encoding.compression.value
                )
                yield sdk_encoding, PublishedFiles(number, manifest)
            self._advance(number, manifest)  # also if a subclass did not send it
            self._write_state_message()
            sent += manifest.records
            self._check_max_record_limit(sent)

    def get_records(self, context: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
        """Yield the records of each published batch that was not sent yet.

        Raises:
            BatchDataError: a file differs from what was published; nothing of its batch is sent.
        """
        for number, manifest in self._pending_manifests:
            self._announce_records(manifest)
            rule = self._offered.stream.on_nonfinite
            for record in records(manifest, columns=self.columns, on_nonfinite=rule):
                self._tap.exit_if_stopped()
                yield record
            self._advance(number, manifest)

    def _sync_records(
        self, context: Mapping[str, Any] | None = None, *, write_messages: bool = True
    ) -> Generator[dict[str, Any], Any, Any]:
        writer = self._tap.message_writer
        if (
            not write_messages
            or not isinstance(writer, LineWriter)
            or type(self).get_records is not PublishedStream.get_records
            or type(self).post_process is not singer_sdk.Stream.post_process
            or self.ABORT_AT_RECORD_COUNT is not None
        ):
            yield from super()._sync_records(context, write_messages=write_messages)
            return
        with self.get_record_counter() as counter, self.get_sync_timer():
            for number, manifest in self._pending_manifests:
                self._announce_records(manifest)
                for block in record_blocks(
                    manifest,
                    self.message_name,
                    columns=self.columns,
                    on_nonfinite=self._offered.stream.on_nonfinite,
                ):
                    writer.write_lines(block)
                    self._tap.exit_if_stopped()
                counter.increment(manifest.records)
                self._advance(number, manifest)
                self._write_state_message()

    def _advance(self, publish_number: int, manifest: Manifest) -> None:
        if self._pending_manifests.advance(publish_number, manifest):
            self.state_manager.is_flushed = False

    def _announce(self, schema: RecordSchema, key_properties: tuple[str, ...]) -> None:
        if self._announced == (schema, key_properties):
            return
        self._announced = (schema, key_properties)
        message = schema_message(self.message_name, schema, key_properties, self.columns)
        del message["type"]
        self._tap.write_message(SchemaMessage(**message))

    def _announce_records(self, manifest: Manifest) -> None:
        if manifest.part_files:  # without records the schema may have no columns
            self._announce(manifest.schema, manifest.key_properties)

    def _write_schema_message(self) -> None:
        """Write the schema of the next manifest, or else the newest schema unless it is empty."""
        first, newest = self._pending_manifests.peek(), self._offered.schema
        if first is not None:
            self._announce_records(first)
        elif newest.columns:
            self._announce(newest, tuple(self._offered.stream.message_keys))

    def _write_state_message(self) -> None:
        """Write the state if it has advanced, then exit if a signal requested it."""
        super()._write_state_message()
        self._tap.exit_if_stopped()

    def _generate_record_messages(
        self, record: dict[str, Any]
    ) -> Generator[RecordMessage, None, None]:
        yield RecordMessage(stream=self.message_name, record=record)

    def _generate_batch_messages(
        self, encoding: BaseBatchFileEncoding, manifest: list[str]
    ) -> Generator[SDKBatchMessage, None, None]:
        facts = manifest.facts if isinstance(manifest, PublishedFiles) else {}
        yield ExtendedBatchMessage(self.message_name, encoding, list(manifest), facts=facts)

    def _write_batch_message(self, encoding: BaseBatchFileEncoding, manifest: list[str]) -> None:
        super()._write_batch_message(encoding, manifest)
        # Do not advance earlier: on a signal the SDK may write the state before the message.
        if isinstance(manifest, PublishedFiles):
            self._advance(*manifest.published)

    def _increment_stream_state(self, *_record: object, **_context: object) -> None:
        """Do nothing, because the state advances with batches and not with records."""

    def get_replication_key_signpost(self, context: Mapping[str, Any] | None = None) -> None:
        """Do nothing, because a replication key of the catalog has no effect."""

    def _write_starting_replication_value(self, context: Mapping[str, Any] | None) -> None:
        """Do nothing, because the state has a bookmark and no column value."""


def selected_columns(
    stream: str, metadata: MetadataMapping, *, listed: Iterable[str], newest: Sequence[str]
) -> frozenset[str] | None:
    """Return the columns to send, or None for all of them.

    `listed` are the columns of the catalog's schema, `newest` all columns of the stream in order.
    If a catalog deselects or omits a column, only its selected columns are sent. Columns that were
    appended after the catalog was written do not count as omitted.

    Raises:
        ConfigurationError: a part of a column is deselected.
    """
    mask = metadata.resolve_selection()
    known = dict.fromkeys(listed, True)
    for breadcrumb in metadata:
        if len(breadcrumb) == 2:
            known[breadcrumb[1]] = mask[breadcrumb]
        elif len(breadcrumb) > 2 and not mask[breadcrumb] and mask[breadcrumb[:2]]:
            problem = f"{'.'.join(breadcrumb[1::2])} of the stream {stream} is deselected"
            step = (
                "Nothing was sent: only whole columns can be deselected. Deselect "
                f"{breadcrumb[1]}, or use `select` or `stream_maps` in the stream file."
            )
            raise unusable_setting("catalog", problem, step)
    present = [name for name in newest if name in known]
    if all(known.values()) and present == list(newest[: len(present)]):
        return None
    return frozenset(name for name, is_selected in known.items() if is_selected)


def _checked(name: str, file: IO[str]) -> IO[str]:
    """Return a copy of a file, which may be a pipe, if it is a JSON object or null."""
    with reading_json_object(name):
        text = file.read()
        if not isinstance(json.loads(text), dict | None):
            raise TypeError
    return io.StringIO(text)


class PublishedTap(SingerPlugin, singer_sdk.Tap):
    """A tap that sends published batches, each once, as BATCH or RECORD messages."""

    name = "tap-batch-pipeline"
    package_name = "batch-pipeline"
    config_jsonschema: ClassVar[dict[str, Any]] = CONFIG_JSON_SCHEMA
    capabilities: ClassVar[list[CapabilitiesEnum]] = [
        TapCapabilities.CATALOG,
        TapCapabilities.STATE,
        TapCapabilities.DISCOVER,
        PluginCapabilities.ABOUT,
        PluginCapabilities.BATCH,
        PluginCapabilities.STRUCTURED_LOGGING,
    ]
    message_writer_class: type[GenericSingerWriter[Any, Any]] = LineWriter
    stream_class: ClassVar[type[PublishedStream]] = PublishedStream

    @classmethod
    def invoke(
        cls, *, state: IO[str] | None = None, catalog: IO[str] | None = None, **options: Any
    ) -> None:
        """Run the command.

        Raises:
            ConfigurationError: the state or the catalog is not a JSON object.
        """
        files = {"state": state, "catalog": catalog}
        options |= {name: file and _checked(name, file) for name, file in files.items()}
        super().invoke(**options)

    @classmethod
    def append_builtin_config(cls, config_jsonschema: dict[str, Any]) -> None:
        """Add no SDK settings: stream maps and flattening belong to stream files."""

    def offered_streams(self) -> Sequence[OfferedStream]:
        """Return all streams."""
        raise NotImplementedError

    def published(
        self, stream: str, bookmark: Bookmark, *, backfills: bool
    ) -> Iterator[tuple[int, Manifest]]:
        """Return publish numbers and manifests of a stream's jobs, by job in publish order.

        Starts after the bookmark's number of each job. Replaced and abandoned manifests are
        omitted.
        """
        raise NotImplementedError

    def setup_mapper(self) -> None:
        """Set up the SDK's mapper after rejecting settings that map records.

        Raises:
            ConfigurationError: a setting of the stream file is set for the tap.
        """
        known = self.config_jsonschema["properties"]
        for name, value in self.config.items():
            if name in _STREAM_FILE_SETTINGS and value:
                problem = "the tap sends files as they were published and maps no records"
                step = f"Nothing was sent. Write `{name}` into the stream file, which applies it."
                raise unusable_setting(name, problem, step)
            # Singer tolerates additional keys, such as an orchestrator's.
            if name not in known and name not in _STREAM_FILE_SETTINGS:
                text = "config: the unknown key %r is ignored.%s"
                self.logger.warning(text, name, did_you_mean(name, known))
        super().setup_mapper()

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the bookmarks of a STATE value, or of a whole STATE message.

        Raises:
            ConfigurationError: a non-empty state has no bookmarks, or a bookmark is not an object.
        """
        written = parse_bookmarks(state, path=STATE_SOURCE)
        bookmarks = {stream: value for stream, value in written.items() if value is not None}
        for stream, value in bookmarks.items():
            if not isinstance(value, dict):
                raise state_file_unusable(STATE_SOURCE, f"bookmark of {stream!r} is not an object")
        super().load_state({"bookmarks": bookmarks})

    def exit_if_stopped(self) -> None:
        """Write the state and exit if a signal arrived; call it between two messages."""
        if self.stop_signal is not None:
            self.state_writer.write_state(self.state)
            sys.exit(128 + self.stop_signal)

    def discover_streams(self) -> Sequence[PublishedStream]:
        """Return the configured streams, or all of them if none are named.

        Raises:
            ConfigurationError: a stream named in `streams` or `mode` does not exist.
        """
        offered = {offer.stream.name: offer for offer in self.offered_streams()}
        names = self.config.get("streams") or list(offered)
        mode = self.config.get("mode")
        modes = mode if isinstance(mode, Mapping) else ()
        for key, name in chain(product(["streams"], names), product(["mode"], modes)):
            if name not in offered:
                known = ", ".join(offered) or "none"
                problem = f"there is no stream {name} (streams there: {known})"
                step = "Nothing was sent. Correct the name or the streams folder."
                meant = did_you_mean(name, offered).lstrip()
                raise unusable_setting(key, problem, f"{meant} {step}".lstrip())
        for name in self.input_catalog or ():
            if name not in offered:
                text = "catalog: nothing is sent for %r, because there is no such stream.%s"
                self.logger.warning(text, name, did_you_mean(name, offered))
        return [self.stream_class(self, offered[name]) for name in names]
