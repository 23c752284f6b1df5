"""A tap of the Singer SDK that says generated records: `python infinity_tap.py --config FILE`.

Runs in an environment that holds the SDK and not this project, so nothing of the project may be
imported here but what lies beside it and needs no more than the standard library.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from singer_sdk import Stream, Tap

generated: Any = import_module("infinity_records")
_TYPES = {
    "integer": {"type": "integer"},
    "float": {"type": "number"},
    "text": {"type": "string"},
    "timestamp": {"type": "string", "format": "date-time"},
}


class Infinity(Stream):
    """The only stream; sorted, so that its bookmark is that of its last record."""

    name = "infinity"
    primary_keys = ("id",)
    replication_key = "rep_key"
    is_sorted = True
    schema = {  # noqa: RUF012 - how the SDK has it
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "rep_key": {"type": "integer"},
            **{name: _TYPES[kind] for name, kind in generated.COLUMNS.items()},
        },
    }

    def get_records(self, context: Any) -> Iterable[dict[str, Any]]:
        """Generate as many as the config says."""
        yield from generated.records(self.config["records"])


class InfinityTap(Tap):
    """The tap; `records` in its config is how many."""

    name = "tap-infinity"
    config_jsonschema = {"properties": {"records": {"type": "integer"}}}  # noqa: RUF012 - as above

    def discover_streams(self) -> list[Stream]:
        """Give the stream."""
        return [Infinity(self)]


if __name__ == "__main__":
    InfinityTap.cli()
