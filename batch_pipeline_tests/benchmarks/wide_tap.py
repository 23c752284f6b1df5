"""A tap of the Singer SDK for generated jsonl.gz files: `python wide_tap.py --config FILE`.

Runs in an environment without this project, so no project module may be imported here.
"""

import gzip
import json
from collections.abc import Iterable
from typing import Any

from singer_sdk import Stream, Tap

_TYPES = {
    "integer": {"type": "integer"},
    "float": {"type": "number"},
    "text": {"type": "string"},
    "timestamp": {"type": "string", "format": "date-time"},
}


class Wide(Stream):
    """The only stream; it is sorted, so its bookmark is that of its last record."""

    name = "wide"
    primary_keys = ("id",)
    replication_key = "id"
    is_sorted = True

    def get_records(self, context: Any) -> Iterable[dict[str, Any]]:
        """Yield the records of all files in the config."""
        for path in self.config["paths"]:
            with gzip.open(path, "rb") as lines:
                yield from map(json.loads, lines)


class WideTap(Tap):
    """The tap; its config has the `paths` of the files and the kinds of their `columns`."""

    name = "tap-wide"
    config_jsonschema = {  # noqa: RUF012 - as in the SDK
        "properties": {"paths": {"type": "array"}, "columns": {"type": "object"}}
    }

    def discover_streams(self) -> list[Stream]:
        """Return the stream."""
        columns = {name: _TYPES[kind] for name, kind in self.config["columns"].items()}
        return [Wide(self, schema={"type": "object", "properties": columns})]


if __name__ == "__main__":
    WideTap.cli()
