"""What the tap and the target have in common as plugins of the Singer SDK.

The settings are parts of the JSON Schemas by which the SDK validates the config.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from singer_sdk.plugin_base import PluginBase

from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.errors import ConfigurationError


def setting(kinds: str, description: str, **more: Any) -> dict[str, Any]:
    """Return the JSON Schema of an optional setting with one of these types."""
    return {"type": [*kinds.split(), "null"], "description": description, **more}


def _closed(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"properties": properties, "additionalProperties": False}


PIPELINE_SETTINGS: dict[str, Any] = {
    "home": setting("string", "Home folder (default: BATCH_PIPELINE_HOME, else .batch_pipeline)."),
    "streams_folder": setting(
        "string",
        "Folder with <name>/defs.yaml per stream (default: BATCH_PIPELINE_STREAMS, else streams).",
    ),
    "inventory_conn": setting(
        "string",
        "Postgres URL of the inventory (default: BATCH_PIPELINE_INVENTORY_CONN, else embedded).",
        secret=True,
        writeOnly=True,
    ),
}
_ENCODING = _closed(
    format={"enum": list(map(str, Format))},
    compression={"enum": [*map(str, Compression), None]},
)
_STORAGE = _closed(
    root={"type": "string", "minLength": 1},
    prefix={"type": ["string", "null"]},
    params={"type": ["object", "null"]},
)
BATCH_CONFIG = _closed(
    encoding={"type": ["object", "null"], "required": ["format"], **_ENCODING},
    storage={"type": ["object", "null"], **_STORAGE},
    batch_size={"type": ["integer", "null"], "minimum": 1},
)


@contextmanager
def reading_json_object(file: str) -> Iterator[None]:
    """Raise `ConfigurationError` if the block cannot read a file of the command line as an object.

    Other JSON values raise a TypeError or, where the SDK merges lists, a ValueError.
    """
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        is_other = type(error) in {TypeError, ValueError}
        reason = "it is not a JSON object" if is_other else str(error).rstrip(".")
        raise ConfigurationError(
            f"The {file} cannot be read: {reason}. Nothing was done. Correct it and start again."
        ) from error


class SingerPlugin(PluginBase):
    """Base of both plugins: reports an unreadable config, and ends between messages on a signal."""

    stop_signal: int | None = None

    @classmethod
    def cb_config(cls, *given: Any) -> Any:
        """Read the config files, a callback of click."""
        with reading_json_object("config"):
            return super().cb_config(*given)

    def _handle_termination(self, signum: int, frame: FrameType | None) -> None:
        """Request the end; a second signal exits immediately."""
        if self.stop_signal is not None:
            signal.signal(signum, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.stop_signal = signum
