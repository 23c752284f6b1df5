"""Errors for records and files of a tap that cannot be landed."""

from singer_sdk.exceptions import (
    MissingKeyPropertiesError,
    RecordsWithoutSchemaException,
)

from batch_pipeline.model.errors import ConfigurationError, RetryableError
from batch_pipeline.singer.parser import MessageError


class RecordWithoutSchemaError(MessageError, RecordsWithoutSchemaException):
    """Records or files that precede the SCHEMA of their stream; a class the SDK's tests expect."""


class RecordKeyMissingError(MessageError, MissingKeyPropertiesError):
    """A record without one of its key properties."""


class RowMismatchError(ValueError):
    """A record that does not fit the columns of a table; the text names property and reason."""


def unusable_landing(stream: str, problem: str) -> ConfigurationError:
    """Build the error for a stream whose stream file has no landing for a tap's records."""
    return ConfigurationError(
        f"The stream {stream!r} {problem}. Nothing was landed. Change its stream "
        f"file, or name another stream for it in `stream_names` of the target."
    )


def landing_failed(folder: str, reason: str) -> ConfigurationError:
    """Build the error for a landing that cannot be written."""
    return ConfigurationError(
        f"The landing folder {folder} cannot be written ({reason}). No half file is "
        f"left, and no STATE was printed for what is lost. Free space or correct the folder, "
        f"then run the tap again from the last STATE that was printed."
    )


def landing_unreachable(uri: str, reason: str) -> RetryableError:
    """Build the error for a store that is currently unreachable."""
    return RetryableError(
        f"The landing {uri} cannot be written now ({reason}). No half file is left, "
        f"and no STATE was printed for what is lost. Run the tap again from the last STATE "
        f"that was printed when the store works again."
    )
