"""Looks at part files that are published: are they there, and are they what was published?"""

import hashlib
from pathlib import Path

from batch_pipeline.domain.location import to_path
from batch_pipeline.domain.manifest import PartFile


def size_problem(part: PartFile) -> str | None:
    """Say what is wrong with a file by its size alone; nothing is opened."""
    path = Path(to_path(part.uri))
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be looked at ({(error.strerror or str(error)).lower()})"
    if size != part.size_bytes:
        return f"{path} has {size:,} bytes, {part.size_bytes:,} were published"
    return None


def checksum_problem(part: PartFile) -> str | None:
    """Say what is wrong with a file by all of its bytes; memory is constant."""
    problem = size_problem(part)
    if problem is not None:
        return problem
    path = Path(to_path(part.uri))
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"{path} cannot be read ({(error.strerror or str(error)).lower()})"
    if found != part.sha256:
        return f"{path} has the SHA-256 {found[:12]}…, {part.sha256[:12]}… was published"
    return None
