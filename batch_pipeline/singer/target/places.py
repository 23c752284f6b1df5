"""Where the records of a Singer stream land, as the target asks for it. Nothing is opened here."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol

from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.domain.item import FoundFile
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
    """A landing, the meta table that lists its files, and what files it takes.

    `stream` is the name of the stream that the files feed, `root` the URI of a folder or of a
    prefix of keys.
    """

    stream: str
    root: str
    format: SourceFormat
    registry: Registry


class NewFile(Protocol):
    """A file on its way into a landing, which it reaches whole or not at all."""

    file: IO[bytes]

    def land(self) -> FoundFile:
        """Complete the file, and tell what has landed.

        Raises:
            PipelineError: that cannot be; nothing has landed.
        """
        ...

    def abandon(self) -> None:
        """Forget the file, as if nothing had come; what has landed stays."""
        ...

    def failed(self, error: OSError) -> PipelineError:
        """Forget the file and say why it cannot land."""
        ...


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
