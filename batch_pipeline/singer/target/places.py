"""Where the records of a Singer stream land, as the target asks for it. Nothing is opened here."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from batch_pipeline.domain.stream import STREAM_NAME, SourceFormat
from batch_pipeline.ports import Registry

_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedStream:
    """What SCHEMA says of a stream; `name` is its name at the tap, after stream maps."""

    name: str
    schema: Mapping[str, Any]
    key_properties: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A landing folder, the meta table that lists its files, and what files it takes.

    `stream` is the name of the stream that the files feed.
    """

    stream: str
    folder: Path
    format: SourceFormat
    registry: Registry


class Places(Protocol):
    """The landings of all streams."""

    def place(self, wanted: WantedStream) -> Place:
        """Give the place of a stream; it is made where there is none.

        Raises:
            ConfigurationError: there is one that cannot take the stream, or none can be made.
        """
        ...

    def close(self) -> None:
        """Close what was opened."""
        ...


def stream_name(name: str) -> str:
    """Give the name that a Singer stream has here: its own wherever that is possible."""
    if STREAM_NAME.fullmatch(name):
        return name
    plain = _OTHER.sub("_", name).lstrip(".-")[:_LONGEST] or "stream"
    return f"{plain}-{zlib.crc32(name.encode('utf-8', 'surrogatepass')):08x}"
