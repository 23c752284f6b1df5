"""What the target does with one Singer stream: its records become files, its files are registered.

Order among streams, and what may be acknowledged, is the target's business.
"""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singer_sdk.exceptions import InvalidRecord
from singer_sdk.helpers._batch import BaseBatchFileEncoding
from singer_sdk.mapper import StreamMap
from singer_sdk.singerlib.json import serialize_json
from singer_sdk.sinks import Sink
from singer_sdk.sinks.core import BaseJSONSchemaValidator

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.item import FoundFile
from batch_pipeline.domain.location import is_object, to_path
from batch_pipeline.domain.stream import SourceFormat
from batch_pipeline.singer.incoming.values import BatchMessage, RecordMessage
from batch_pipeline.singer.target.batch_files import CheckedFile, check
from batch_pipeline.singer.target.batch_places import at_hand, locate
from batch_pipeline.singer.target.batch_reading import BatchFile, BatchLimits, records
from batch_pipeline.singer.target.growing import GrowingFile
from batch_pipeline.singer.target.landing_file import sweep
from batch_pipeline.singer.target.places import NewFile, Place, WantedStream
from batch_pipeline.singer.target.refusals import (
    FileTakenError,
    PlaceUnfitError,
    RecordInvalidError,
    RecordKeyMissingError,
    RowMisfitError,
)
from batch_pipeline.singer.target.validation import CompiledValidator

if TYPE_CHECKING:
    from batch_pipeline.singer.target.target import LandingTarget

_METADATA = b'"_sdc_'
_FORMATS = {Format.JSONL: SourceFormat.JSONL, Format.PARQUET: SourceFormat.PARQUET}


class LandingSink(Sink):
    """Lands the records of one stream; `process_batch_files` may be overridden in a subclass.

    `first_line` is the line of the first record that is not durable and registered yet.
    """

    target: "LandingTarget"

    def __init__(
        self,
        target: "LandingTarget",
        stream_name: str,
        schema: dict[str, Any],
        key_properties: Sequence[str] | None,
    ) -> None:
        self.target = target
        self.first_line: int | None = None
        self.batch: tuple[BatchMessage, StreamMap | None] | None = None
        self._growing: GrowingFile | None = None
        super().__init__(target, stream_name, schema, key_properties)
        self._keys = tuple(self._key_properties)
        self._preprocesses = type(self).preprocess_record is not Sink.preprocess_record

    def setup(self) -> None:
        """Find or make the place where the stream lands, unless a map removes all of it.

        Raises:
            ConfigurationError: there is none that can take it.
        """
        if not self.target.is_removed(self.stream_name):
            root = self.place.root
            if not is_object(root):
                sweep(Path(to_path(root)))

    @cached_property
    def place(self) -> Place:
        """Where the stream lands; found or made when it is first asked for.

        Raises:
            ConfigurationError: there is none that can take it.
        """
        wanted = WantedStream(
            name=self.stream_name, schema=self.schema, key_properties=tuple(self._key_properties)
        )
        place = self.target.places.place(wanted)
        takes = (SourceFormat.AUTO, *_FORMATS.values())
        if place.format not in takes:
            problem = f"reads {place.format} files, while the target lands jsonl or parquet"
            raise PlaceUnfitError(place.stream, problem)
        return place

    def get_validator(self) -> BaseJSONSchemaValidator | None:
        """Give a compiled validator; None with `validate_records: false`."""
        return CompiledValidator(self.schema) if self.validate_schema else None

    def take(self, message: RecordMessage, record: dict[str, Any], text: bytes | None) -> None:
        """Check a record and write it; `text` is how it was written, None when it was changed.

        Raises:
            RecordInvalidError: it is not what SCHEMA says.
            RecordKeyMissingError: it lacks a key property.
            LandingFailedError: it cannot be written.
        """
        if self.include_sdc_metadata_properties:
            said = {"time_extracted": message.time_extracted, "version": message.version}
            record, text = dict(record), None
            self._add_sdc_metadata_to_record(record, said, {})
        elif text is None or _METADATA in text:
            before = len(record)
            self._remove_sdc_metadata_from_record(record)
            text = text if len(record) == before else None
        self._check(message, record)
        if self._preprocesses:
            record, text = self.preprocess_record(record, {}), None
        self.process_record(record, {"text": text})

    def process_record(self, record: dict[str, Any], context: dict[str, Any]) -> None:
        """Add a record to the file that grows."""
        text = context.get("text") or serialize_json(record).encode()
        try:
            self._growing_file(self.target.line).write(text, record)
        except RowMisfitError as error:
            raise self._misfit(error) from error

    def process_batch(self, context: dict[str, Any]) -> None:
        """Write the records in `context`, which an overridden `process_batch_files` has read."""
        for record in context.get("records", ()):
            self.process_record(record, {})
            self._land_if_full()

    def process_batch_files(self, encoding: BaseBatchFileEncoding, files: Sequence[str]) -> None:
        """Check the files of a BATCH, then register them where they lie, or copy what they hold.

        They stay where they are if the stream reads their format as it is; a stream map, metadata
        columns or another format make their records go through this sink like RECORDs.

        Raises:
            BatchFileError: a file is not what the message says; nothing was registered.
            BatchPlaceError: a file lies where none are read; it was not opened.
            BatchStoreError: the store of a file does not give it now; nothing was registered.
            FileTakenError: it is registered already with other content; nothing was registered.
        """
        if self.batch is None:
            raise ValueError("process_batch_files is called for a BATCH message only")
        message, stream_map = self.batch
        settings = self.target.settings
        limits = BatchLimits(
            max_line_bytes=settings.max_line_bytes, max_expansion=settings.max_expansion
        )
        storage = None if settings.batch_config is None else settings.batch_config.storage
        root = None if storage is None else storage.root
        places = locate(message, root, settings.batch_roots)
        keys = self._keys if stream_map is None else ()  # a map may give them other names
        with ExitStack() as copies:
            batch = [copies.enter_context(at_hand(message, place)) for place in places]
            checked = [
                check(message, at, file, keys=keys, limits=limits) for at, file in enumerate(batch)
            ]
            if stream_map is None and self._takes_whole(message):
                self._register_files(message, [one for one in checked if one.records])
                return
            for file in batch:
                for text, record in records(message, file, limits):
                    said = RecordMessage(message.line, message.stream, b"", record, message.version)
                    self.take_mapped(said, stream_map, text)

    def take_mapped(
        self, message: RecordMessage, stream_map: StreamMap | None, text: bytes | None
    ) -> None:
        """Take what a stream map makes of a record, if anything; land the file once it is full."""
        record: dict[str, Any] | None = message.record
        if stream_map is not None:
            record, text = stream_map.transform(dict(message.record)), None
        if record is None:
            return
        self.take(message, record, text)
        self._land_if_full()

    def activate_version(self, new_version: int) -> None:
        """Say that it was heard; files are only ever added, so older versions stay in them."""
        self.logger.info("version %s is active; rows of others are the consumer's", new_version)

    @property
    def due_at(self) -> float | None:
        """When the file that grows has to land, by the monotonic clock."""
        return None if self._growing is None else self._growing.due_at

    def land(self) -> None:
        """Make what was written durable and register it; nothing where nothing grows.

        Raises:
            LandingFailedError: the disk refuses.
            PipelineError: the meta table does; the file is there, and is found by the next listing.
        """
        growing, self._growing = self._growing, None
        if growing is not None:
            try:
                found = growing.land()
            except RowMisfitError as error:
                raise self._misfit(error) from error
            finally:
                growing.abandon()
            self._register([found])
            self.record_counter_metric.increment(growing.records)
        self.first_line = None

    def abandon(self) -> None:
        """Forget what was written and is not landed."""
        if self._growing is not None:
            self._growing.abandon()
        self._growing = None

    def _check(self, message: RecordMessage, record: dict[str, Any]) -> None:
        if self._validator is not None:
            try:
                self._validator.validate(record)
            except InvalidRecord as error:
                refusal = RecordInvalidError(
                    message.line, error.error_message, message.stream, "record"
                )
                if self.fail_on_record_validation_exception:
                    raise refusal from error
                self.logger.warning("%s", refusal)
        for key in self._keys:
            if key not in record:
                problem = f"lacks {key!r}, one of `key_properties`"
                raise RecordKeyMissingError(message.line, problem, message.stream, "record")

    def _land_if_full(self) -> None:
        if self._growing is not None and self._growing.is_full:
            self.target.land(self)

    def _growing_file(self, line: int) -> GrowingFile:
        if self._growing is None:
            self.first_line = line
            self._growing = self.target.new_file(self)
        return self._growing

    def _misfit(self, error: RowMisfitError) -> RecordInvalidError:
        line = self.target.line
        return RecordInvalidError(line, str(error), self.stream_name, "record")

    def _takes_whole(self, message: BatchMessage) -> bool:
        formats = (SourceFormat.AUTO, _FORMATS[message.encoding.format])
        return self.place.format in formats and not self.include_sdc_metadata_properties

    def _register_files(self, message: BatchMessage, checked: Sequence[CheckedFile]) -> None:
        if not self.target.settings.copies_batch_files:
            self._register([one.found for one in checked])
            return
        usual = {Format.PARQUET: Compression.SNAPPY}.get(message.encoding.format, Compression.NONE)
        encoding = Encoding(
            format=message.encoding.format, compression=message.encoding.compression or usual
        )
        copies: list[NewFile] = []
        try:
            for one in checked:
                copies.append(self.target.new_landing_file(self.place, f".{encoding.suffix}"))
                _copy(one.file, copies[-1])
            self._register([copy.land() for copy in copies])
        finally:
            for copy in copies:
                copy.abandon()

    def _register(self, found: Sequence[FoundFile]) -> None:
        registered = self.place.registry.register(found, accept_changed=False, all_or_none=True)
        failpoint("target.after_register")
        if registered.changed:
            raise FileTakenError(self.place.stream, registered.changed[0])


def _copy(file: BatchFile, landing: NewFile) -> None:
    try:
        with file.open() as source:
            shutil.copyfileobj(source, landing.file, 1 << 20)
    except OSError as error:
        raise landing.failed(error) from error
