"""What the tap and the target have in common as plugins of the Singer SDK.

The settings are parts of the JSON Schemas by which the SDK validates the config.
"""

import signal
from importlib import import_module
from types import FrameType
from typing import Any

from batch_pipeline.model.encoding import Compression, Format

# Errors of reading a config file, which the SDK parses with `simplejson`.
CONFIG_READ_ERRORS: tuple[type[Exception], ...] = (
    FileNotFoundError,
    import_module("simplejson").JSONDecodeError,
)


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


class StopOnSignal:
    """Mixin of a plugin that a signal ends between two messages."""

    stop_signal: int | None = None

    def _handle_termination(self, signum: int, frame: FrameType | None) -> None:
        """Request the end; a second signal exits immediately."""
        if self.stop_signal is not None:
            signal.signal(signum, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.stop_signal = signum
