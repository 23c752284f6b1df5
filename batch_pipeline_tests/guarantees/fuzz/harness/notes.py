"""What a child and who watches it write to each other: the input in hand, the finds, the counts."""

import mmap
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import msgspec

_HEAD = struct.Struct("<QQQQQ")
_DATA_BYTES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Some inputs of one target: the numbers from `first` up to, not including, `stop`."""

    target: str
    first: int
    stop: int
    step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a child is to do: shares one after the other, all inputs made from one seed."""

    seed: int
    shares: tuple[Share, ...]
    folder: str  # for what is told and kept
    scratch: str  # for what the inputs become
    most_bytes: int  # by which memory may grow while one input is looked at
    plan: str = "batch_pipeline_tests.guarantees.fuzz.plan"  # the module that knows the targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Find:
    """An input that did what none may: `kind` is changed, exception, memory, hang or crash."""

    target: str
    number: int
    kind: str
    told: str  # of what it did, the last line is the shortest
    path: str  # where the input is kept

    @property
    def mark(self) -> str:
        """What finds with the same cause have in common."""
        return f"{self.target}: {self.kind}: {self.told.splitlines()[-1] if self.told else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Where a child is: which share, which input, what came before it in this share."""

    share: int
    number: int
    read: int
    refused: int
    data: bytes


class Board:
    """Memory that a child and who watches it share, and that survives the child."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_HEAD.size + _DATA_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @property
    def now(self) -> Now:
        """What was written last."""
        share, number, read, refused, size = _HEAD.unpack_from(self._memory)
        data = self._memory[_HEAD.size : _HEAD.size + size]
        return Now(share=share, number=number, read=read, refused=refused, data=data)

    @property
    def place(self) -> tuple[int, int]:
        """The share and the input, quickly."""
        share, number, *_ = _HEAD.unpack_from(self._memory)
        return share, number

    def write(self, now: Now) -> None:
        """Say where the child is."""
        size = min(len(now.data), _DATA_BYTES)
        self._memory[_HEAD.size : _HEAD.size + size] = now.data[:size]
        _HEAD.pack_into(self._memory, 0, now.share, now.number, now.read, now.refused, size)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of the inputs of one target, and which of them took longest."""

    target: str
    read: int
    refused: int
    slowest: int = 0
    slowest_seconds: float = 0.0
    seconds: float = 0.0  # of all of them together


def line_of(note: Find | Tally) -> bytes:
    """Write a find or a tally as one line."""
    return msgspec.json.encode({"kind_of_note": type(note).__name__, **asdict(note)}) + b"\n"


def notes_in(lines: bytes) -> list[Find | Tally]:
    """Read such lines; one that breaks off is that of a child that died while it wrote."""
    found: list[Find | Tally] = []
    for line in lines.splitlines(keepends=True):
        if line.endswith(b"\n"):
            fields = msgspec.json.decode(line)
            kind = {"Find": Find, "Tally": Tally}[fields.pop("kind_of_note")]
            found.append(kind(**fields))
    return found
