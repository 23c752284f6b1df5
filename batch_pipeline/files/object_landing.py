"""Listing a landing in a bucket: the objects below a prefix of keys.

An object appears whole, so none has to rest. What is somebody's unfinished work by its name is left
out as on disks, and so are the empty objects that stand for folders. Nothing is remembered here.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from batch_pipeline.domain.errors import InvalidValueError, LandingUnavailableError, UnfitKeyError
from batch_pipeline.domain.file_range import split_location
from batch_pipeline.domain.item import FoundFile
from batch_pipeline.domain.location import as_s3, split_object, to_object_uri
from batch_pipeline.domain.stream import Source, Stream
from batch_pipeline.files.landing import NOT_YET, compare
from batch_pipeline.files.wanted import is_chosen, is_unfinished, why_unwanted
from batch_pipeline.stores import s3
from batch_pipeline.stores.facts import FileFacts, look
from batch_pipeline.stores.failures import reason_of
from batch_pipeline.stores.listing import objects

_LOOKS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLanding:
    """The objects of a stream below the prefix that its source names.

    `client` gives the client of S3 to ask with.
    """

    stream: Stream
    client: Callable[[], Any] = s3.client

    @property
    def source(self) -> Source:
        """What the stream file says of the landing."""
        source = self.stream.source
        if not isinstance(source, Source):
            raise InvalidValueError("source", source.place, "a landing in a bucket")
        return source

    def found_files(self) -> Iterator[FoundFile]:
        """List the files in the order of their keys' bytes.

        Raises:
            LandingUnavailableError: the store cannot be asked, or refuses.
            UnfitKeyError: a key cannot be told from a range of another one.
        """
        return (file for _, file in self.looked_at() if file is not None)

    def looked_at(self, after: str = "") -> Generator[tuple[str, FoundFile | None]]:
        """List all keys behind one, each with its file; None for an object that is left out.

        Raises:
            LandingUnavailableError: the store cannot be asked, or refuses.
            UnfitKeyError: a key cannot be told from a range of another one.
        """
        try:
            for one in objects(self._prefix, after=after, client=self.client):
                wanted = self.wants(one.key)
                yield one.key, self._file(one.key, one.facts) if wanted else None
        except OSError as error:
            raise self.unavailable(error) from error

    def present(self, keys: Iterable[str]) -> Iterator[FoundFile]:
        """Look at objects one by one; those that are gone, or left out, are not given.

        Raises:
            LandingUnavailableError: the store cannot be asked, or refuses.
            UnfitKeyError: a key cannot be told from a range of another one.
        """
        wanted = [key for key in keys if self.wants(key)]
        try:
            with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="looking") as threads:
                for key, facts in zip(wanted, threads.map(self._facts, wanted), strict=True):
                    file = None if facts is None else self._file(key, facts)
                    if file is not None:
                        yield file
        except OSError as error:
            raise self.unavailable(error) from error

    def wants(self, key: str) -> bool:
        """Tell by a key below the prefix whether its object is taken.

        Raises:
            UnfitKeyError: it is, but it cannot be told from a range of another one.
        """
        relative = key[len(split_object(self._prefix)[1]) :]
        if not relative or is_unfinished(relative):
            return False
        if not is_chosen(self.source, relative.rpartition("/")[2], relative):
            return False
        if _names_range(self._uri(key)):
            raise UnfitKeyError(self.stream.name, self._uri(key))
        return True

    def has(self, bucket: str, key: str) -> bool:
        """Tell whether a key lies below the prefix."""
        own_bucket, prefix = split_object(self._prefix)
        return bucket == own_bucket and key.startswith(prefix)

    def unavailable(self, error: OSError, uri: str | None = None) -> LandingUnavailableError:
        """Make the error that says why the landing, or its queue, cannot be asked."""
        return LandingUnavailableError(self.stream.name, uri or self.source.uri, reason_of(error))

    def compare(self, registered: FoundFile) -> str:
        """Say in words how the object of an item stands now."""
        return compare(registered)

    def why_not(self, file: str) -> str:
        """Say in words why an object is not, or not yet, one that this landing lists."""
        is_name = "://" not in file and not file.startswith("/")
        uri = self._prefix + file if is_name else as_s3(file)
        if not uri.startswith(self._prefix):
            return "the file lies outside of this prefix"
        if _names_range(uri):
            return "its key ends as locations of ranges of bytes do; copy it to another key"
        try:
            facts = look(uri, self.client)
        except (FileNotFoundError, InvalidValueError):
            return "no such object below this prefix"
        except OSError as error:
            return f"it cannot be looked at ({reason_of(error)})"
        if _is_folder(uri, facts):
            return "empty objects that stand for folders are left out"
        return why_unwanted(self.source, uri.removeprefix(self._prefix)) or NOT_YET

    @property
    def _prefix(self) -> str:
        return f"{self.source.uri}/"

    def _uri(self, key: str) -> str:
        return to_object_uri(split_object(self._prefix)[0], key)

    def _facts(self, key: str) -> FileFacts | None:
        try:
            return look(self._uri(key), self.client)
        except FileNotFoundError:
            return None

    def _file(self, key: str, facts: FileFacts) -> FoundFile | None:
        if _is_folder(key, facts):
            return None
        return FoundFile(
            location=self._uri(key),
            size_bytes=facts.size_bytes,
            modified_at=facts.modified_at,
            etag=facts.etag,
        )


def _is_folder(key: str, facts: FileFacts) -> bool:
    return key.endswith("/") and facts.size_bytes == 0


def _names_range(uri: str) -> bool:
    try:
        return split_location(uri)[1] is not None
    except InvalidValueError:
        return True  # one that no file can have
