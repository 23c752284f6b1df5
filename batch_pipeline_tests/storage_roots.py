"""A folder on a disk or a key prefix in S3, with file operations for tests."""

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from batch_pipeline.model.item import LandedFile, modified_at
from batch_pipeline.model.location import is_object, join_uri, to_path, to_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.stream import Storage
from batch_pipeline.storage.filesystem import FileSystem, filesystem_of
from batch_pipeline.storage.part_storage import PartFileStorage


@dataclass(frozen=True, slots=True)
class Root:
    """A folder, which need not exist, or a key prefix."""

    uri: str

    def put(self, name: str, content: bytes = b"") -> str:
        """Write a file and return its URI."""
        uri = self._files.join(self.uri, name)
        self._files.make_folder(uri.rpartition("/")[0], parents=True)
        self._files.put(uri, content)
        return uri

    def land(self, name: str, content: bytes) -> LandedFile:
        """Write a file and return its entry in a listing."""
        uri = self.put(name, content)
        facts = self._files.head(uri)
        return LandedFile(
            location=uri,
            size_bytes=facts.size_bytes,
            modified_at=facts.modified_at,
            etag=facts.etag,
        )

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._files.delete(self._files.join(self.uri, name))

    def names(self) -> list[str]:
        """List all files below the root, including hidden files."""
        if is_object(self.uri):
            return sorted(file.name for file in self._files.list(f"{self.uri}/"))
        folder = Path(to_path(self.uri))
        paths = (path for path in folder.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(folder)) for path in paths)

    @property
    def _files(self) -> FileSystem:
        return filesystem_of(self.uri)


def new_folder(path: Path) -> Root:
    """Create a folder."""
    path.mkdir()
    return Root(to_uri(path))


def new_prefix(uri: str) -> Root:
    """Return a unique prefix below a bucket or another prefix."""
    return Root(join_uri(uri, uuid4().hex[:8]))


def storage_at(uri: str, prefix: str = "") -> PartFileStorage:
    """Return the part file storage at a root."""
    return PartFileStorage(Storage(root=uri, prefix=prefix))


def content(uri: str) -> bytes:
    """Read a file or an object."""
    with filesystem_of(uri).open(uri) as file:
        return file.read()


def records(files: Iterable[PartFile]) -> list[Any]:
    """Read gzipped JSON lines."""
    texts = (gzip.decompress(content(part.uri)) for part in files)
    return [json.loads(line) for text in texts for line in text.splitlines()]


def landed_file(path: Path) -> LandedFile:
    """Return a file on a disk as a listing describes it."""
    status = path.stat()
    return LandedFile(
        location=to_uri(path), size_bytes=status.st_size, modified_at=modified_at(status)
    )
