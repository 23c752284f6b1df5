"""The records of one part file as lines of JSON, in blocks; memory is a block.

Lines of jsonl files stay as they are. Who gets the lines, and as what, is not known here.
"""

import gzip
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, assert_never

import msgspec
import zstandard

from batch_pipeline.domain.encoding import Compression, Format
from batch_pipeline.domain.manifest import Manifest, PartFile
from batch_pipeline.singer.part_files import part_file_error, unreadable

_BLOCK_BYTES = 2**20
_HAS_ISAL = find_spec("isal") is not None  # there is no wheel for some platforms
_GZIP: Any = import_module("isal.igzip") if _HAS_ISAL else gzip
_ISAL_ERROR: type[Exception] = import_module("isal.isal_zlib").error if _HAS_ISAL else zlib.error
_DAMAGE = (
    gzip.BadGzipFile,
    EOFError,
    zlib.error,
    _ISAL_ERROR,
    zstandard.ZstdError,
    UnicodeDecodeError,
)
_by_column = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


def json_lines(
    manifest: Manifest, part: PartFile, path: Path, columns: Collection[str] | None = None
) -> Iterator[bytes]:
    """Read the records of a part file as blocks of whole lines, each line a JSON object.

    `path` is where its bytes are. Numbers keep all digits that the file has. With `columns` records
    have only these; values stay as they were written.

    Raises:
        PartFileError: the file cannot be read as its manifest says, or has more or fewer records.
    """
    blocks = _lines_of_tables if manifest.encoding.format is not Format.JSONL else _text_blocks
    found = 0
    try:
        for block in blocks(manifest, part, path, columns):
            found += block.count(b"\n")
            yield block
    except _DAMAGE as error:
        what = f"{manifest.encoding.format} with compression {manifest.encoding.compression}"
        problem = f"is not {what} ({error})"
        raise part_file_error(manifest, part, problem, found + 1) from error
    except OSError as error:
        raise unreadable(manifest, part, error) from error
    if found != part.records:
        problem = f"has other records: {found}, published: {part.records}"
        raise part_file_error(manifest, part, problem, found)


def _text_blocks(
    manifest: Manifest, part: PartFile, path: Path, columns: Collection[str] | None
) -> Iterator[bytes]:
    with ExitStack() as opened:
        file = opened.enter_context(path.open("rb"))
        blocks = _whole_lines(_unpacked(file, manifest.encoding.compression))
        if columns is None:
            yield from blocks
        else:
            yield from _projected(manifest, part, blocks, columns)


def _unpacked(file: BinaryIO, compression: Compression) -> BinaryIO:
    match compression:
        case Compression.NONE:
            return file
        case Compression.GZIP:
            opened: BinaryIO = _GZIP.open(file, "rb")
            return opened
        case Compression.ZSTD:
            frames = zstandard.ZstdDecompressor()
            return frames.stream_reader(file, read_across_frames=True, closefd=False)
        case Compression.SNAPPY:
            raise ValueError("no part file is compressed by snappy as a whole")
        case _:
            assert_never(compression)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Cut what is read behind its last line break."""
    held: list[bytes] = []
    while piece := file.read(_BLOCK_BYTES):
        end = piece.rfind(b"\n") + 1
        if end:
            yield b"".join((*held, piece[:end]))
            held = [piece[end:]] if end < len(piece) else []
        else:
            held.append(piece)
    if held:
        yield b"".join((*held, b"\n"))


def _projected(
    manifest: Manifest, part: PartFile, blocks: Iterable[bytes], columns: Collection[str]
) -> Iterator[bytes]:
    number = 0
    for block in blocks:
        kept: list[bytes] = []
        for line in block[:-1].split(b"\n"):
            number += 1
            try:
                record = _by_column.decode(line)
            except msgspec.MsgspecError as error:
                problem = f"is no JSON object ({error})"
                raise part_file_error(manifest, part, problem, number) from error
            kept.append(_encode({name: record[name] for name in record if name in columns}))
        yield b"\n".join(kept) + b"\n"


def _lines_of_tables(
    manifest: Manifest, part: PartFile, path: Path, columns: Collection[str] | None
) -> Iterator[bytes]:
    from batch_pipeline.singer.table_lines import NoTableError, table_lines  # pyarrow: 0.2 s

    wanted = manifest.schema.columns
    if columns is not None:
        wanted = tuple(column for column in wanted if column.name in columns)
    try:
        yield from table_lines(path, manifest.encoding.format, wanted)
    except NoTableError as error:
        problem = f"is not {manifest.encoding.format} ({error})"
        raise part_file_error(manifest, part, problem) from error
