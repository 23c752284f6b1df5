"""The tap's configuration: what may be in it, and what it means for one stream.

A `batch_config` is taken as the Singer SDK documents it. Files exist before the tap runs, so it
can only agree with them: nothing is encoded again here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.errors import ConfigurationError

_MODES = ["batch", "record"]
CONFIG_JSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "home": {
            "type": ["string", "null"],
            "description": "Home folder of the pipeline; as BATCH_PIPELINE_HOME if left out.",
        },
        "streams_folder": {
            "type": ["string", "null"],
            "description": "Folder with <name>/defs.yaml per stream; as BATCH_PIPELINE_STREAMS if "
            "left out.",
        },
        "inventory_conn": {
            "type": ["string", "null"],
            "secret": True,
            "writeOnly": True,
            "description": "Postgres URL of the inventory; as BATCH_PIPELINE_INVENTORY_CONN if "
            "left out.",
        },
        "streams": {
            "type": ["array", "null"],
            "items": {"type": "string"},
            "description": "Names of the streams to offer; all of the folder if left out.",
        },
        "mode": {
            "type": ["string", "object", "null"],
            "description": "How batches are sent: `batch`, or `record` for targets that cannot "
            "read BATCH messages; also per stream, as {orders: batch}. If left out, `batch` with "
            "a batch_config, else `record`.",
            "anyOf": [
                {"enum": [*_MODES, None]},
                {"type": "object", "additionalProperties": {"enum": _MODES}},
            ],
        },
        "backfills": {
            "type": ["boolean", "null"],
            "default": True,
            "description": "Whether batches of backfills are sent, too.",
        },
        "batch_config": {
            "type": ["object", "null"],
            "description": "The Singer SDK's. `encoding` has to be that of the stream file; where "
            "the files lie and how long they are was decided when they were published, so "
            "`storage` and `batch_size` change nothing.",
            "properties": {
                "encoding": {
                    "type": "object",
                    "required": ["format"],
                    "additionalProperties": False,
                    "properties": {
                        "format": {"type": "string", "enum": [one.value for one in Format]},
                        "compression": {
                            "type": ["string", "null"],
                            "enum": [*(one.value for one in Compression), None],
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
            "additionalProperties": False,
        },
    },
}
_OF_THE_STREAM_FILE = (
    "stream_maps",
    "stream_map_config",
    "flattening_enabled",
    "flattening_max_depth",
)


class Mode(StrEnum):
    """How batches are sent."""

    BATCH = "batch"
    RECORD = "record"


@dataclass(eq=False)
class TapSettingError(ConfigurationError):
    """A setting of the tap asks for what it cannot do."""

    setting: str
    problem: str
    next_step: str

    def sentence(self) -> str:
        return f"{self.setting}: {self.problem}. {self.next_step}"


def check_settings(config: Mapping[str, Any]) -> None:
    """Refuse what would change records on the way, for BATCH messages only name files.

    Raises:
        TapSettingError: there is such a setting.
    """
    for name in _OF_THE_STREAM_FILE:
        if config.get(name):
            problem = "the tap sends files as they were published and maps no records"
            step = f"Nothing was sent. Write `{name}` into the stream file: there it is applied."
            raise TapSettingError(name, problem, step)


def mode_of(config: Mapping[str, Any], stream: str) -> Mode:
    """Give the mode of a stream; without one it depends on `batch_config`, as in the SDK."""
    mode = config.get("mode")
    chosen = mode.get(stream) if isinstance(mode, Mapping) else mode
    if chosen is not None:
        return Mode(chosen)
    return Mode.BATCH if config.get("batch_config") else Mode.RECORD


def check_encoding(
    config: Mapping[str, Any], found: Encoding, *, stream: str, where: str = "the stream file"
) -> None:
    """Check that files have the encoding that `batch_config` asks for, if it does.

    Raises:
        TapSettingError: they have another one.
    """
    wanted = (config.get("batch_config") or {}).get("encoding")
    if not wanted:
        return
    compression = wanted.get("compression")
    if wanted["format"] != found.format or compression not in (None, found.compression):
        asked = (
            wanted["format"] if compression is None else f"{wanted['format']} with {compression}"
        )
        problem = (
            f"the stream {stream} is to be sent as {asked}, and `encoding` in {where} is "
            f"{found.format} with {found.compression}"
        )
        step = (
            "Files are not encoded again. Leave `encoding` out of batch_config, or change it in "
            "the stream file and materialize the batches again; `mode: record` sends any encoding."
        )
        raise TapSettingError("batch_config.encoding", problem, step)
