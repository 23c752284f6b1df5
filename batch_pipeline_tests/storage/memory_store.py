"""An object store in memory: the complete interface of a custom file system."""

import errno
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BufferedReader, BytesIO
from typing import Any
from uuid import uuid4

from batch_pipeline.model.location import Roots
from batch_pipeline.storage.filesystem import (
    FileFacts,
    FileSystem,
    IsKnown,
    ListedFile,
    UnfinishedFile,
)

SCHEME = "memory"


@dataclass
class MemoryFileSystem(FileSystem):
    """Files by URI in a dictionary."""

    objects: dict[str, tuple[bytes, FileFacts]] = field(default_factory=dict)
    uploads: dict[str, "MemoryWriter"] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def list(
        self,
        prefix: str,
        *,
        after: str = "",
        recursive: bool = True,
        facts_for: Callable[[str], object] | None = None,
        is_known: IsKnown | None = None,
    ) -> Iterator[ListedFile]:
        folder = prefix[: prefix.rfind("/") + 1]
        for uri in sorted(self.objects, key=str.encode):
            name = uri.removeprefix(folder)
            if uri.startswith(prefix) and name > after and (recursive or "/" not in name):
                facts = self.objects[uri][1]
                if is_known is None or not is_known(name, facts.size_bytes, facts.state):
                    needs_facts = facts_for is None or bool(facts_for(name))
                    yield ListedFile(name, facts if needs_facts else None)

    def head(self, uri: str, *, checksum: bool = False) -> FileFacts:
        return self.version(uri)[1]

    def open(self, uri: str, etag: str | None = None) -> "BufferedReader[Any]":
        return self.pin(uri, etag=etag).open()

    def pin(
        self, uri: str, *, etag: str | None = None, roots: Roots | None = None
    ) -> "MemoryPinned":
        data, facts = self.version(uri)
        if etag not in {None, facts.etag}:
            raise FileExistsError(errno.EEXIST, "another version is there", uri)
        return MemoryPinned(self, uri, data, facts)

    def create(self, uri: str) -> "MemoryWriter":
        return MemoryWriter(self, uri)

    def put(self, uri: str, data: bytes) -> None:
        now = datetime.now(UTC).replace(microsecond=0)
        sha256, etag = hashlib.sha256(data).hexdigest(), uuid4().hex
        facts = FileFacts(size_bytes=len(data), modified_at=now, etag=etag, sha256=sha256)
        self.objects[uri] = data, facts

    def create_if_absent(self, uri: str, data: bytes) -> bool:
        with self.lock:
            if uri not in self.objects:
                self.put(uri, data)
        return self.objects[uri][0] == data

    def delete(self, *uris: str) -> None:
        for uri in uris:
            self.objects.pop(uri, None)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedFile]:
        folder = prefix[: prefix.rfind("/") + 1]
        for upload_id, writer in [*self.uploads.items()]:
            name = writer.uri.removeprefix(folder)
            if writer.uri.startswith(prefix) and "/" not in name:
                yield UnfinishedFile(
                    uri=writer.uri, name=name, started_at=datetime.now(UTC), upload_id=upload_id
                )

    def abort_unfinished(self, file: UnfinishedFile) -> bool:
        return self.uploads.pop(file.upload_id or "", None) is not None

    def version(self, uri: str) -> tuple[bytes, FileFacts]:
        """Return the current content and facts of a file."""
        try:
            return self.objects[uri]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", uri) from None


@dataclass
class MemoryPinned:
    """One version of a file."""

    store: MemoryFileSystem
    uri: str
    data: bytes
    facts: FileFacts
    error: OSError | None = None

    def open(self) -> "BufferedReader[Any]":
        return BufferedReader(BytesIO(self.data))

    def check_unchanged(self) -> None:
        if self.store.head(self.uri) != self.facts:
            raise FileExistsError(errno.EEXIST, "another version is there", self.uri)

    def close(self) -> None:
        pass  # there is nothing to release


class MemoryWriter:
    """A file that becomes visible when it is committed."""

    def __init__(self, store: MemoryFileSystem, uri: str) -> None:
        self.uri = uri
        self._store = store
        self._id = uuid4().hex
        self._data = bytearray()
        store.uploads[self._id] = self

    def write(self, data: bytes | memoryview) -> None:
        self._data += data

    def finish(self) -> None:
        pass  # all bytes are in memory

    def commit(self) -> None:
        if self._store.uploads.pop(self._id, None) is not None:
            self._store.put(self.uri, bytes(self._data))

    def abort(self) -> bool:
        if self._store.uploads.pop(self._id, None) is None:
            self._store.delete(self.uri)
        return True
