"""Where files lie in tests: a folder of a disk or a prefix of keys in a store, with one face."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from batch_pipeline.encode.task import encode_items
from batch_pipeline.encode.task_values import TaskReport, TaskSpec
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import join_uri, to_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Source, Storage, Stream
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.filesystem import filesystem_of
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.factories import CONTEXT


class Place(Protocol):
    """A folder, or a prefix of keys."""

    uri: str

    def put(self, name: str, data: bytes) -> LandedFile:
        """Write a file and give what a listing says of it."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file."""
        ...

    def names(self) -> list[str]:
        """List the names of all files below."""
        ...


class Folder:
    """A new folder of a disk."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.uri = to_uri(path)
        self._path = path

    def put(self, name: str, data: bytes) -> LandedFile:
        """Write a file and give what a listing says of it."""
        (self._path / name).write_bytes(data)
        return found(to_uri(self._path / name))

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self._path / name).unlink()

    def names(self) -> list[str]:
        """List the names of all files below."""
        files = (path for path in self._path.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self._path)) for path in files)


class Prefix:
    """A new prefix of keys."""

    def __init__(self, bucket: str) -> None:
        self.uri = join_uri(bucket, uuid4().hex[:8])

    def put(self, name: str, data: bytes) -> LandedFile:
        """Write an object and give what a listing says of it."""
        uri = join_uri(self.uri, name)
        S3.put(uri, data)
        return found(uri)

    def remove(self, name: str) -> None:
        """Remove an object."""
        S3.delete(join_uri(self.uri, name))

    def names(self) -> list[str]:
        """List the names of all objects below."""
        return [one.name for one in S3.list(f"{self.uri}/")]


class Requests:
    """The requests that the client of this process sends while the block runs, by operation."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def __enter__(self) -> "Requests":
        s3_client.client().meta.events.register("before-send.s3.*", self._note)
        return self

    def __exit__(self, *_error: object) -> None:
        s3_client.client().meta.events.unregister("before-send.s3.*", self._note)

    def _note(self, event_name: str, **_given: object) -> None:
        self.sent.append(event_name.rpartition(".")[2])


def found(uri: str) -> LandedFile:
    """Give what a listing says of a file as it is now."""
    facts = filesystem_of(uri).head(uri)
    return LandedFile(
        location=uri, size_bytes=facts.size_bytes, modified_at=facts.modified_at, etag=facts.etag
    )


def content(part: PartFile) -> bytes:
    """Read a part file."""
    with filesystem_of(part.uri).open(part.uri) as file:
        return file.read()


def between(stream: Stream, landing: Place, storage: Place) -> Stream:
    """Let a stream lead from one place to another."""
    assert isinstance(stream.source, Source)
    return replace(
        stream,
        source=replace(stream.source, uri=landing.uri),
        storage=Storage(root=storage.uri, prefix=stream.storage.prefix),
    )


def task(stream: Stream, files: Iterable[LandedFile], **types: str) -> TaskReport:
    """Run one task over files, numbered from 1, with a schema given as name=type."""
    items = tuple(Item(id=number, file=file) for number, file in enumerate(files, 1))
    spec = TaskSpec(
        number=0,
        stem="orders-1",
        stream=stream,
        schema=RecordSchema.from_json(list(types.items())),
        items=items,
        context=CONTEXT,
    )
    return encode_items(spec, execution="00c0ffee")
