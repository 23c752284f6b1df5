"""A storage root on a disk or in a bucket, with what a test does there by hand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from batch_pipeline.model.location import is_object, join_uri, to_path, to_uri
from batch_pipeline.model.stream import Storage
from batch_pipeline.storage.filesystem import filesystem_of
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline.storage.s3 import S3


class Root(Protocol):
    """A storage root."""

    @property
    def uri(self) -> str:
        """Where it is."""

    def put(self, name: str, content: bytes = b"") -> str:
        """Write a file and give its URI."""

    def names(self) -> list[str]:
        """List all files below it."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A root on a disk."""

    path: Path

    @property
    def uri(self) -> str:
        """Where it is."""
        return to_uri(self.path)

    def put(self, name: str, content: bytes = b"") -> str:
        """Write a file and give its URI."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return to_uri(path)

    def names(self) -> list[str]:
        """List all files below it."""
        found = (path for path in self.path.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.path)) for path in found)


@dataclass(frozen=True, slots=True)
class Prefix:
    """A root in a bucket."""

    uri: str

    def put(self, name: str, content: bytes = b"") -> str:
        """Write an object and give its URI."""
        uri = join_uri(self.uri, name)
        S3.put(uri, content)
        return uri

    def names(self) -> list[str]:
        """List all objects below it."""
        return sorted(one.name for one in S3.list(f"{self.uri}/"))


def root_at(uri: str) -> Root:
    """Give the root at a URI."""
    return Prefix(uri) if is_object(uri) else Folder(Path(to_path(uri)))


def storage_at(uri: str, prefix: str = "") -> PartFileStorage:
    """Give the storage with a root."""
    return PartFileStorage(Storage(root=uri, prefix=prefix))


def content(uri: str) -> bytes:
    """Read a file or an object."""
    with filesystem_of(uri).open(uri) as file:
        return file.read()
