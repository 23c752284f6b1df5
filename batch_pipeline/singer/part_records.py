"""The records of a manifest, read back from its part files in their order.

All files of a manifest are compared with what was published before the first record is given.
Nothing is written or remembered here.
"""

import json
from collections.abc import Collection, Iterator
from decimal import Decimal
from typing import Any

import msgspec

from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.singer.part_files import checked_files, part_file_error
from batch_pipeline.singer.part_lines import json_lines

_decode = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal).decode


def record_blocks(
    manifest: Manifest, name: str, *, columns: Collection[str] | None = None
) -> Iterator[bytes]:
    """Give the RECORD messages of a manifest as blocks of whole lines, about 1 MiB each.

    The text of a record is that of its file: no number loses a digit. With `columns` records have
    only these.

    Raises:
        PartFileError: a file is gone, is not what was published or cannot be read as encoded.
        PartFileUnreachableError: the store of a file does not give it now.
    """
    head = b'{"type":"RECORD","stream":' + json.dumps(name).encode() + b',"record":'
    joint = b"}\n" + head
    with checked_files(manifest) as paths:
        for part, path in zip(manifest.part_files, paths, strict=True):
            for block in json_lines(manifest, part, path, columns):
                yield b"".join((head, block[:-1].replace(b"\n", joint), b"}\n"))


def record_lines(
    manifest: Manifest, name: str, *, columns: Collection[str] | None = None
) -> Iterator[bytes]:
    """Give the RECORD messages of a manifest, each a line of JSON, ending included.

    Raises:
        PartFileError: a file is gone, is not what was published or cannot be read as encoded.
        PartFileUnreachableError: the store of a file does not give it now.
    """
    for block in record_blocks(manifest, name, columns=columns):
        for line in block[:-1].split(b"\n"):
            yield line + b"\n"


def records(
    manifest: Manifest, *, columns: Collection[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Give the records of a manifest as Python has JSON, numbers with a fraction as decimals.

    Raises:
        PartFileError: a file is gone, is not what was published or cannot be read as encoded.
        PartFileUnreachableError: the store of a file does not give it now.
    """
    with checked_files(manifest) as paths:
        for part, path in zip(manifest.part_files, paths, strict=True):
            number = 0
            for block in json_lines(manifest, part, path, columns):
                for line in block[:-1].split(b"\n"):
                    number += 1
                    try:
                        yield _decode(line)
                    except msgspec.MsgspecError as error:
                        problem = f"is no JSON object ({error})"
                        raise part_file_error(manifest, part, problem, number) from error
