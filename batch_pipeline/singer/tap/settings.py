"""Settings of the tap, and the interface of its source of published manifests.

`check_settings`, `mode_of` and `check_encoding` interpret the configuration; `PublishedSource`
supplies streams and manifests. `batch_config` follows the Singer SDK. The files exist before the
tap runs and are never encoded again, so its encoding has to match theirs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Stream
from batch_pipeline.singer.bookmarks import Bookmark

_MODES = ["batch", "record"]


def _setting(kinds: str, description: str, **more: Any) -> dict[str, Any]:
    return {"type": [*kinds.split(), "null"], "description": description, **more}


CONFIG_JSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "home": _setting(
            "string", "Home folder of the pipeline; as BATCH_PIPELINE_HOME if left out."
        ),
        "streams_folder": _setting(
            "string",
            "Folder with <name>/defs.yaml per stream; as BATCH_PIPELINE_STREAMS if left out.",
        ),
        "inventory_conn": _setting(
            "string",
            "Postgres URL of the inventory; as BATCH_PIPELINE_INVENTORY_CONN if left out.",
            secret=True,
            writeOnly=True,
        ),
        "streams": _setting(
            "array",
            "Names of the streams to offer; all of the folder if left out.",
            items={"type": "string"},
        ),
        "mode": _setting(
            "string object",
            "How batches are sent: `batch`, or `record` for targets that cannot read BATCH "
            "messages; also per stream, as {orders: batch}. If left out, `batch` with a "
            "batch_config, else `record`.",
            anyOf=[
                {"enum": [*_MODES, None]},
                {"type": "object", "additionalProperties": {"enum": _MODES}},
            ],
        ),
        "backfills": _setting(
            "boolean", "Whether batches of backfills are sent, too.", default=True
        ),
        "batch_config": _setting(
            "object",
            "The Singer SDK's. `encoding` has to be that of the stream file; where the files lie "
            "and how long they are was decided when they were published, so `storage` and "
            "`batch_size` change nothing.",
            properties={
                "encoding": {
                    "type": "object",
                    "required": ["format"],
                    "additionalProperties": False,
                    "properties": {
                        "format": {"type": "string", "enum": list(map(str, Format))},
                        "compression": {
                            "type": ["string", "null"],
                            "enum": [*map(str, Compression), None],
                        },
                    },
                },
                "storage": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "root": {"type": "string"},
                        "prefix": {"type": ["string", "null"]},
                        "params": {"type": "object"},
                    },
                },
                "batch_size": {"type": ["integer", "null"]},
            },
            additionalProperties=False,
        ),
    },
}
_STREAM_FILE_SETTINGS = (
    "stream_maps",
    "stream_map_config",
    "flattening_enabled",
    "flattening_max_depth",
)


class Mode(StrEnum):
    """The kind of message that transfers records."""

    BATCH = "batch"
    RECORD = "record"


def check_settings(config: Mapping[str, Any]) -> None:
    """Reject settings that would change records, because BATCH messages only refer to files.

    Raises:
        ConfigurationError: a setting of the stream file is set for the tap.
    """
    for name in _STREAM_FILE_SETTINGS:
        if config.get(name):
            problem = "the tap sends files as they were published and maps no records"
            step = f"Nothing was sent. Write `{name}` into the stream file: there it is applied."
            raise unusable_setting(name, problem, step)


def mode_of(config: Mapping[str, Any], stream: str) -> Mode:
    """Return the mode of a stream; the default depends on `batch_config`, as in the SDK."""
    mode = config.get("mode")
    chosen = mode.get(stream) if isinstance(mode, Mapping) else mode
    if chosen is not None:
        return Mode(chosen)
    return Mode.BATCH if config.get("batch_config") else Mode.RECORD


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
            f"the stream {stream} is to be sent as {text}, and `encoding` in {where} is "
            f"{actual.format} with {actual.compression}"
        )
        step = (
            "Files are not encoded again. Leave `encoding` out of batch_config, or change it in "
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


class PublishedSource(Protocol):
    """A source of streams and their published manifests."""

    def offered_streams(self) -> Sequence[OfferedStream]:
        """Return all streams."""
        ...

    def published(
        self, stream: str, bookmark: Bookmark, *, backfills: bool
    ) -> Iterator[tuple[int, Manifest]]:
        """Return publish numbers and manifests of a stream's jobs, by job in publish order.

        Starts after the bookmark's number of each job. Replaced and abandoned manifests are
        omitted.
        """
        ...
