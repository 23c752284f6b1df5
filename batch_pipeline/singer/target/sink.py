"""The sink of one stream: validates records, writes them to files, and registers the files.

`LandingSink` handles records and BATCH files, `CompiledValidator` validates with JSON Schema draft
2020-12, or draft 4 if the schema fits only that. Formats are not validated: whether text is a date
is determined when it is encoded.
"""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import jsonschema_rs
from singer_sdk.exceptions import InvalidJSONSchema, InvalidRecord, MissingKeyPropertiesError
from singer_sdk.helpers._batch import BaseBatchFileEncoding
from singer_sdk.mapper import StreamMap
from singer_sdk.singerlib.json import serialize_json
from singer_sdk.sinks import Sink
from singer_sdk.sinks.core import BaseJSONSchemaValidator

from batch_pipeline.model.encoding import PART_FORMATS, Compression, Encoding
from batch_pipeline.model.errors import ConfigurationError, RetryableError
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import shown
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline.singer.parser import SINGER_FORMATS, BatchMessage, MessageError, RecordMessage
from batch_pipeline.singer.target.batches import CheckedFile, check, fetch, locate, records
from batch_pipeline.singer.target.config import AnnouncedStream, StreamLanding, unusable_landing
from batch_pipeline.singer.target.landing_files import (
    LANDING_FILE_NAME,
    LandingFile,
    RollingFile,
    RowMismatchError,
    land_all,
)
from batch_pipeline.storage.filesystem import filesystem_of

if TYPE_CHECKING:
    from batch_pipeline.singer.target.target import LandingTarget
_MAX_SHOWN_CHARACTERS = 200
_CORRECT_RECORD = "Correct the record or the SCHEMA, or set `validate_records: false`"
_CORRECT_MAP = "Correct the record or `stream_maps`"
_CORRECT_ROW = "Correct the record or the SCHEMA, or land jsonl instead of parquet"
_METADATA = b'"_sdc_'


class RecordKeyMissingError(MessageError, MissingKeyPropertiesError):
    """A record without one of its key properties."""


class LandingSink(Sink):
    """A sink that lands the records of one stream; subclasses may override `process_batch_files`.

    `first_line` is the line of the first record that is not yet durable and registered.
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
        self._rolling: RollingFile | None = None
        super().__init__(target, stream_name, schema, key_properties)
        self._keys = tuple(self._key_properties)
        self._preprocesses = type(self).preprocess_record is not Sink.preprocess_record

    def setup(self) -> None:
        """Create the stream's landing and clean it up, unless a map removes the whole stream.

        Raises:
            ConfigurationError: no landing accepts the stream.
        """
        if not self.target.is_removed(self.stream_name):
            root = self.landing.root
            filesystem_of(root).remove_abandoned(root, LANDING_FILE_NAME)

    @cached_property
    def landing(self) -> StreamLanding:
        """The landing of the stream, created on first access.

        Raises:
            ConfigurationError: no landing accepts the stream.
        """
        announced = AnnouncedStream(
            name=self.stream_name, schema=self.schema, key_properties=tuple(self._key_properties)
        )
        landing = self.target.landing_of(announced)
        if landing.format not in (SourceFormat.AUTO, *SINGER_FORMATS):
            written = " or ".join(SINGER_FORMATS)
            problem = f"reads {landing.format} files, while the target lands {written}"
            raise unusable_landing(landing.stream, problem)
        return landing

    @cached_property
    def _drops_undeclared(self) -> bool:
        """Whether `_sdc_` properties that the SCHEMA lacks are dropped: nothing could hold them."""
        is_table = PART_FORMATS[self.target.encoding_of(self.landing).format].is_columnar
        return is_table or self.schema.get("additionalProperties") is False

    def get_validator(self) -> BaseJSONSchemaValidator | None:
        """Return a compiled validator, or None with `validate_records: false`."""
        return CompiledValidator(self.schema) if self.validate_schema else None

    def accept(self, message: RecordMessage, record: dict[str, Any], text: bytes | None) -> None:
        """Validate a record and write it; `text` is its JSON text, None if it was changed.

        Raises:
            MessageError: the record violates its SCHEMA.
            RecordKeyMissingError: a key property is missing.
            ConfigurationError: the record cannot be written.
        """
        if self.include_sdc_metadata_properties:
            metadata = {"time_extracted": message.time_extracted, "version": message.version}
            record, text = dict(record), None
            self._add_sdc_metadata_to_record(record, metadata, {})
        elif self._drops_undeclared and (text is None or _METADATA in text):
            known = self.schema.get("properties", {})
            kept = {
                name: value
                for name, value in record.items()
                if name in known or not name.startswith("_sdc_")
            }
            record, text = kept, text if len(kept) == len(record) else None
        self._check(message, record)
        if self._preprocesses:
            record, text = self.preprocess_record(record, {}), None
        self.process_record(record, {"text": text})

    def process_record(self, record: dict[str, Any], context: dict[str, Any]) -> None:
        """Write a record to the current file."""
        text = context.get("text") or serialize_json(record).encode()
        try:
            self._rolling_file(self.target.line).write(text, record)
        except RowMismatchError as error:
            line, problem, step = self.target.line, str(error), _CORRECT_ROW
            raise MessageError(line, problem, self.stream_name, "record", step) from error

    def process_batch(self, context: dict[str, Any]) -> None:
        """Write the records in `context`, as read by an overridden `process_batch_files`."""
        for record in context.get("records", ()):
            self.process_record(record, {})
            self._land_if_full()

    def process_batch_files(self, encoding: BaseBatchFileEncoding, files: Sequence[str]) -> None:
        """Verify the files of a BATCH, then register them in place or copy their content.

        The files are registered if the stream reads their format unchanged. With a stream map,
        metadata columns or another format, their records are processed like RECORDs.

        Raises:
            MessageError: a file differs from the message; nothing was registered.
            MessageError: a file is outside of the allowed roots; it was not opened.
            MessageError: a record cannot be processed; earlier records may have landed.
            RetryableError: the store of a file is currently unreachable; nothing was registered.
            ConfigurationError: a file is already registered with other content; nothing was
                registered.
        """
        if self.batch is None:
            raise ValueError("process_batch_files is called for a BATCH message only")
        message, stream_map = self.batch
        settings = self.target.settings
        limits = settings.read_limits
        places = locate(message, settings.batch_root, settings.batch_roots)
        keys = self._keys if stream_map is None else ()  # a map may rename them
        with ExitStack() as copies:
            batch = [copies.enter_context(fetch(message, place)) for place in places]
            checked = [
                check(message, at, file, keys=keys, limits=limits) for at, file in enumerate(batch)
            ]
            if stream_map is None and self._can_register_files(message):
                self._register_files(message, [file for file in checked if file.records])
                return
            for file in batch:
                for text, record in records(message, file, limits):
                    source = RecordMessage(
                        message.line, message.stream, b"", record, message.version
                    )
                    self.accept_mapped(source, stream_map, text)

    def accept_mapped(
        self, message: RecordMessage, stream_map: StreamMap | None, text: bytes | None
    ) -> None:
        """Apply a stream map to a record and write the result, if any; land a full file.

        Raises:
            MessageError: an expression of the stream map fails, or as for `accept`.
        """
        record: dict[str, Any] | None = message.record
        if stream_map is not None:
            try:
                record, text = stream_map.transform(dict(message.record)), None
            except Exception as error:  # expressions may raise any
                reason = error.__cause__ or error
                problem = f"cannot be mapped ({type(reason).__name__}: {reason})"
                raise MessageError(
                    message.line, problem, message.stream, "record", _CORRECT_MAP
                ) from error
        if record is None:
            return
        self.accept(message, record, text)
        self._land_if_full()

    def activate_version(self, new_version: int) -> None:
        """Log the version; files are only added, so records of older versions remain."""
        self.logger.info("version %s is active; rows of other versions remain", new_version)

    @property
    def due_at(self) -> float:
        """Time by which the current file has to land, on the monotonic clock."""
        return float("inf") if self._rolling is None else self._rolling.due_at

    def land(self) -> None:
        """Make the written records durable and register their file, if there is one.

        Raises:
            ConfigurationError: the disk cannot be written.
            PipelineError: registration failed; the file exists, and the next listing registers it.
        """
        rolling, self._rolling = self._rolling, None
        if rolling is not None:
            try:
                landed = rolling.land()
            finally:
                rolling.abandon()
            self._register_landed([landed])
            self.record_counter_metric.increment(rolling.records)
        self.first_line = None

    def abandon(self) -> None:
        """Discard records that have not landed."""
        if self._rolling is not None:
            self._rolling.abandon()
        self._rolling = None

    def _remove_sdc_metadata_from_schema(self) -> None:
        """Keep the columns, contrary to the SDK: records are written as the tap sent them."""

    def _check(self, message: RecordMessage, record: dict[str, Any]) -> None:
        if self._validator is not None:
            try:
                self._validator.validate(record)
            except InvalidRecord as error:
                failure = MessageError(
                    message.line, error.error_message, message.stream, "record", _CORRECT_RECORD
                )
                if self.fail_on_record_validation_exception:
                    raise failure from error
                self.logger.warning("%s", failure)
        for key in self._keys:
            if key not in record:
                problem = f"lacks {key!r}, one of `key_properties`"
                step = "Configure the tap to write all of `key_properties`"
                raise RecordKeyMissingError(message.line, problem, message.stream, "record", step)

    def _land_if_full(self) -> None:
        if self._rolling is not None and self._rolling.is_full:
            self.target.land(self)

    def _rolling_file(self, line: int) -> RollingFile:
        if self._rolling is None:
            self.first_line = line
            self._rolling = self.target.new_file(self)
        return self._rolling

    def _can_register_files(self, message: BatchMessage) -> bool:
        formats = (SourceFormat.AUTO, message.encoding.format.value)
        return self.landing.format in formats and not self.include_sdc_metadata_properties

    def _register_files(self, message: BatchMessage, checked: Sequence[CheckedFile]) -> None:
        if not self.target.settings.copies_batch_files:
            self._register([file.landed for file in checked])
            return
        part_format = PART_FORMATS[message.encoding.format]
        # Lines without a stated compression are plain text.
        unstated = part_format.compressions[0] if part_format.is_columnar else Compression.NONE
        encoding = Encoding(
            format=message.encoding.format,
            compression=message.encoding.compression or unstated,
        )
        copies: list[LandingFile] = []
        try:
            for file in checked:
                copy = self.target.new_landing_file(self.landing, f".{encoding.suffix}")
                copies.append(copy)
                with copy.writing(), file.file.open() as source:
                    shutil.copyfileobj(source, copy.file, 1 << 20)
                    copy.file.flush()
            self._register_landed(land_all(copies))
        finally:
            for copy in copies:
                copy.abandon()

    def _register_landed(self, files: Sequence[LandedFile]) -> None:
        """Register files of the landing, which its next listing registers otherwise."""
        try:
            self._register(files)
        except (ConfigurationError, RetryableError) as error:
            kind = RetryableError if isinstance(error, RetryableError) else ConfigurationError
            text = str(error).replace("Nothing was changed", "Nothing was registered")
            landed = "; ".join(f"{shown(file.location)} has landed" for file in files)
            raise kind(
                f"{text} {landed}. What has landed will be ingested, and its records arrive again "
                f"when the tap runs again."
            ) from error

    def _register(self, files: Sequence[LandedFile]) -> None:
        registered = self.landing.registry.register(files, accept_changed=False, all_or_none=True)
        failpoint("target.after_register")
        if registered.changed:
            raise _file_taken(self.landing.stream, registered.changed[0])


def _file_taken(stream: str, location: str) -> ConfigurationError:
    return ConfigurationError(
        f"{stream}: {location} was already registered with another size or time. "
        f"No file of its manifest was registered, and no STATE was printed after it. "
        f"Use new names for the tap's files, or set `batch_files: copy`."
    )


class CompiledValidator(BaseJSONSchemaValidator):
    """A compiled JSON Schema. Numbers are compared exactly as int and Decimal, never float.

    Raises:
        InvalidJSONSchema: the schema is invalid, or refers to an external schema.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        super().__init__(schema)
        self._compiled: jsonschema_rs.Validator
        try:
            self._compiled = jsonschema_rs.Draft202012Validator(schema, retriever=_refuse)
        except ValueError as error:
            try:  # taps of databases write `exclusiveMaximum: true` for decimals
                self._compiled = jsonschema_rs.Draft4Validator(
                    schema, retriever=_refuse, validate_formats=False
                )
            except ValueError:
                text = str(error).partition("\n")[0][:_MAX_SHOWN_CHARACTERS]
                raise InvalidJSONSchema(text) from error

    def validate(self, record: dict[str, Any]) -> None:
        """Validate a record.

        Raises:
            InvalidRecord: the record violates the schema; the message names the property.
        """
        if self._compiled.is_valid(record):
            return
        try:
            error = next(iter(self._compiled.iter_errors(record)))
        except ValueError as too_deep:  # the schema refers to itself
            raise InvalidRecord("violates the schema inside nested objects", record) from too_deep
        place = ".".join(str(step) for step in error.instance_path)
        problem = error.message[:_MAX_SHOWN_CHARACTERS]
        raise InvalidRecord(f"{place}: {problem}" if place else problem, record)


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not part of the schema, and nothing is fetched")
