"""One stream of the tap: what is published of it and not sent yet, as BATCH or RECORD messages.

What is to be sent, in which order, and what is left out was decided by the source; here it is said
in the SDK's terms. A subclass may bring a `get_batches`, `get_records` or `post_process` of its
own, as with any stream of the SDK.
"""

import logging
from collections.abc import Generator, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from singer_sdk import Stream
from singer_sdk.helpers._batch import BaseBatchFileEncoding, BatchConfig, SDKBatchMessage
from singer_sdk.singerlib.catalog import REPLICATION_FULL_TABLE, REPLICATION_INCREMENTAL
from singer_sdk.singerlib.encoding.simple import RecordMessage, SchemaMessage

from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.singer.messages import announcement
from batch_pipeline.singer.part_files import check_sizes
from batch_pipeline.singer.part_records import record_blocks, records
from batch_pipeline.singer.tap.selection import chosen_columns
from batch_pipeline.singer.tap.settings import Mode, check_encoding, mode_of
from batch_pipeline.singer.tap.source import Offered, PublishedSource
from batch_pipeline.singer.tap.unsent import Unsent
from batch_pipeline.singer.tap.writing import FactedBatchMessage, LineWriter, PublishedFiles

if TYPE_CHECKING:
    from batch_pipeline.singer.tap.tap import PublishedTap


class PublishedStream(Stream):
    """The published batches of one stream, resumed behind its bookmark."""

    _tap: "PublishedTap"

    def __init__(self, tap: "PublishedTap", offered: Offered, source: PublishedSource) -> None:
        self._offered = offered
        self._source = source
        self._announced: tuple[RecordSchema, tuple[str, ...]] | None = None
        super().__init__(tap, schema=offered.schema.json_schema(), name=offered.stream.name)
        self.primary_keys = list(offered.stream.message_keys)
        self.forced_replication_method = REPLICATION_INCREMENTAL

    @property
    def message_name(self) -> str:
        """The name of the stream in messages; state and catalog keep to its own."""
        return self._offered.stream.message_name

    @property
    def emit_activate_version_messages(self) -> bool:
        """Never: generations of batches say themselves what they replace."""
        return False

    @cached_property
    def columns(self) -> frozenset[str] | None:
        """The columns that the catalog lets through, None for all.

        Raises:
            TapSettingError: it leaves out a part of a column.
        """
        if self._input_schema is None:
            return None
        listed = self._input_schema.get("properties", {})
        newest = self._offered.schema.names
        chosen = chosen_columns(self.name, self.metadata, listed=listed, newest=newest)
        missing = [] if chosen is None else [name for name in newest if name not in listed]
        if missing:
            text = "Columns that the catalog does not know are not sent: %s"
            self.log(text, ", ".join(missing), level=logging.WARNING)
        return chosen

    @cached_property
    def _unsent(self) -> Unsent:
        wanted = self.config.get("backfills")
        return Unsent(
            self._source,
            self.name,
            self.stream_state,
            from_start=self.replication_method == REPLICATION_FULL_TABLE,
            backfills=True if wanted is None else wanted,
        )

    def get_batch_config(self, config: Mapping[str, Any]) -> BatchConfig | None:
        """Give how to send files as they are; None where records are to be sent.

        Files hold all columns. Where the catalog leaves some out, records without them are sent.

        Raises:
            TapSettingError: `batch_config` asks for another encoding than the stream file's.
        """
        if mode_of(config, self.name) is Mode.RECORD:
            return None
        stream = self._offered.stream
        check_encoding(config, stream.encoding, stream=self.name)
        if self.columns is not None:
            text = "The files hold columns that the catalog leaves out, so records are sent"
            self.log(text, level=logging.WARNING)
            return None
        given = {name: part for name, part in (config.get("batch_config") or {}).items() if part}
        storage = {"root": stream.storage.root, "prefix": stream.storage.prefix}
        storage |= given.get("storage", {})
        encoding = {
            "format": stream.encoding.format.value,
            "compression": stream.encoding.compression.value,
        }
        return BatchConfig.from_dict({"encoding": encoding, **given, "storage": storage})

    def get_batches(
        self, batch_config: BatchConfig, context: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[BaseBatchFileEncoding, list[str]]]:
        """Give encoding and files of each batch that is published and not sent yet.

        Raises:
            PartFileError: a file is gone or has another size than published; nothing of its batch
                is sent.
            TapSettingError: a batch has another encoding than `batch_config` asks for.
        """
        sent = 0
        for number, manifest in self._unsent:
            if manifest.part_files:
                encoding = manifest.encoding
                where = f"batch {manifest.batch.label}, generation {manifest.generation},"
                check_encoding(self.config, encoding, stream=self.name, where=where)
                check_sizes(manifest)
                self._announce(manifest.schema, manifest.key_properties)
                said = BaseBatchFileEncoding(encoding.format.value, encoding.compression.value)
                yield said, PublishedFiles(number, manifest)
            self._move_past(number, manifest)  # also where a subclass did not send it
            self._write_state_message()
            sent += manifest.records
            self._check_max_record_limit(sent)

    def get_records(self, context: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
        """Give the records of each batch that is published and not sent yet.

        Raises:
            PartFileError: a file is not what was published; nothing of its batch is sent.
        """
        for number, manifest in self._unsent:
            self._announce_records(manifest)
            for record in records(manifest, columns=self.columns):
                self._tap.end_if_told()
                yield record
            self._move_past(number, manifest)

    def _sync_records(
        self, context: Mapping[str, Any] | None = None, *, write_messages: bool = True
    ) -> Generator[dict[str, Any], Any, Any]:
        writer = self._tap.message_writer
        if (
            not write_messages
            or not isinstance(writer, LineWriter)
            or type(self).get_records is not PublishedStream.get_records
            or type(self).post_process is not Stream.post_process
            or self.ABORT_AT_RECORD_COUNT is not None
        ):
            yield from super()._sync_records(context, write_messages=write_messages)
            return
        with self.get_record_counter() as counter, self.get_sync_timer():
            for number, manifest in self._unsent:
                self._announce_records(manifest)
                for block in record_blocks(manifest, self.message_name, columns=self.columns):
                    writer.write_lines(block)
                    self._tap.end_if_told()
                counter.increment(manifest.records)
                self._move_past(number, manifest)
                self._write_state_message()

    def _move_past(self, publish_number: int, manifest: Manifest) -> None:
        if self._unsent.move_past(publish_number, manifest):
            self.state_manager.is_flushed = False

    def _announce(self, schema: RecordSchema, key_properties: tuple[str, ...]) -> None:
        if self._announced == (schema, key_properties):
            return
        self._announced = (schema, key_properties)
        message = announcement(self.message_name, schema, key_properties, self.columns)
        del message["type"]
        self._tap.write_message(SchemaMessage(**message))

    def _announce_records(self, manifest: Manifest) -> None:
        if manifest.part_files:  # without records there may be no columns to announce
            self._announce(manifest.schema, manifest.key_properties)

    def _write_schema_message(self) -> None:
        """Announce what comes first, or what came last; nothing before the first records."""
        first, newest = self._unsent.first(), self._offered.schema
        if first is not None:
            self._announce_records(first)
        elif newest.columns:
            self._announce(newest, tuple(self._offered.stream.message_keys))

    def _write_state_message(self) -> None:
        """Say the state if it has moved; then the tap may end."""
        super()._write_state_message()
        self._tap.end_if_told()

    def _generate_record_messages(
        self, record: dict[str, Any]
    ) -> Generator[RecordMessage, None, None]:
        yield RecordMessage(stream=self.message_name, record=record)

    def _generate_batch_messages(
        self, encoding: BaseBatchFileEncoding, manifest: list[str]
    ) -> Generator[SDKBatchMessage, None, None]:
        facts = manifest.facts if isinstance(manifest, PublishedFiles) else {}
        yield FactedBatchMessage(self.message_name, encoding, list(manifest), facts=facts)

    def _write_batch_message(self, encoding: BaseBatchFileEncoding, manifest: list[str]) -> None:
        super()._write_batch_message(encoding, manifest)
        # Only now: a signal lets the SDK write the state as it is, in front of the message too.
        if isinstance(manifest, PublishedFiles):
            self._move_past(*manifest.published)

    def _increment_stream_state(self, *_record: object, **_context: object) -> None:
        """Leave the state alone: it moves with batches, not with records."""

    def _write_starting_replication_value(self, context: Mapping[str, Any] | None) -> None:
        """Leave the state alone: it has a bookmark and no value of a column."""
