"""Why records and files that a tap announced are not landed. Nothing is read or written here."""

from dataclasses import dataclass
from typing import ClassVar

from singer_sdk.exceptions import (
    InvalidJSONSchema,
    InvalidRecord,
    MissingKeyPropertiesError,
    RecordsWithoutSchemaException,
)

from batch_pipeline.domain.errors import ConfigurationError, RetryableError
from batch_pipeline.singer.incoming.refusals import MessageError, SchemaMissingError


class RecordWithoutSchemaError(SchemaMissingError, RecordsWithoutSchemaException):
    """Records or files of a stream come before its SCHEMA, as the SDK's tests know it."""


class SchemaUnusableError(MessageError, InvalidJSONSchema):
    """SCHEMA holds no JSON Schema that records could be checked with."""


class RecordInvalidError(MessageError, InvalidRecord):
    """A record is not what the SCHEMA of its stream says."""

    next_step: ClassVar[str] = "Correct the record or the SCHEMA, or set `validate_records: false`"


class RecordKeyMissingError(MessageError, MissingKeyPropertiesError):
    """A record lacks one of the properties that identify it."""

    next_step: ClassVar[str] = "Let the tap write all of `key_properties`"


class BatchFileError(MessageError):
    """A file of a manifest is not what its BATCH says."""

    next_step: ClassVar[str] = "Nothing of the manifest was registered. Let the tap write it again"


class BatchPlaceError(MessageError):
    """A file of a manifest lies where this target does not read files."""

    next_step: ClassVar[str] = (
        "Nothing of the manifest was registered. Add the folder of the tap's files to "
        "`batch_roots` in the target's config, or let the tap write into one that is there"
    )


@dataclass(eq=False)
class BatchStoreError(RetryableError):
    """The store of a file of a manifest cannot be asked now, which says nothing about the file."""

    line: int
    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"Line {self.line}, key `manifest`: {self.uri} cannot be read now ({self.reason}). "
            f"Nothing of the manifest was registered, nor is anything that no printed STATE "
            f"covers. Run again from the last STATE that was printed when the store answers as it "
            f"should."
        )


@dataclass(eq=False)
class PlaceUnfitError(ConfigurationError):
    """What a stream file describes cannot take what a tap says."""

    stream: str
    problem: str

    def sentence(self) -> str:
        return (
            f"The stream {self.stream!r} {self.problem}. Nothing was landed. Change its stream "
            f"file, or name another stream for it in `stream_names` of the target."
        )


@dataclass(eq=False)
class LandingFailedError(ConfigurationError):
    """A file cannot be written into a landing folder."""

    folder: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The landing folder {self.folder} cannot be written ({self.reason}). No half file is "
            f"left, and no STATE was printed for what is lost. Free space or correct the folder, "
            f"then run the tap again from the last STATE that was printed."
        )


@dataclass(eq=False)
class LandingUnreachableError(RetryableError):
    """The store of a landing does not take a file now."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The landing {self.uri} cannot be written now ({self.reason}). No half file is left, "
            f"and no STATE was printed for what is lost. Run the tap again from the last STATE "
            f"that was printed when the store answers as it should."
        )


@dataclass(eq=False)
class FileTakenError(ConfigurationError):
    """A file of a manifest is registered already, with other content."""

    stream: str
    location: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: {self.location} was registered before with another size or time, and "
            f"is not taken a second time. No file of its manifest was registered, and no STATE "
            f"printed after it. Let the tap give its files new names, or set `batch_files: copy`."
        )


class RowMisfitError(ValueError):
    """A record does not fit the columns of a table; the text says which property, and why."""
