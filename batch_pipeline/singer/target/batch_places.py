"""Finds the files of a BATCH on this machine's disks and in S3, and brings them to hand.

What is in them is not known here.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.file_range import split_location
from batch_pipeline.domain.location import (
    S3_SCHEMES,
    as_s3,
    join_uri,
    scheme_of,
    split_object,
    to_uri,
)
from batch_pipeline.domain.roots import Roots
from batch_pipeline.singer.incoming.values import BatchMessage
from batch_pipeline.singer.target.batch_reading import BatchFile, refusal
from batch_pipeline.singer.target.refusals import BatchPlaceError, BatchStoreError
from batch_pipeline.stores.copies import local_file
from batch_pipeline.stores.facts import FileFacts, look
from batch_pipeline.stores.failures import reason_of, tells_of_file
from batch_pipeline.stores.within import leads_out

_EXPECTED = "expected a file on a disk of this machine, or an object of S3"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlace:
    """Where a file of a manifest is: on a disk at `path`, or in a store with `facts`."""

    location: str
    path: Path | None = None
    facts: FileFacts | None = None


def locate(message: BatchMessage, root: str | None, roots: Roots) -> list[FoundPlace]:
    """Find the files of a manifest, in order; with a root, files of the same names in it.

    Those of a disk are given by their real paths, which lie below the root or one of `roots`; what
    lies elsewhere is not looked for. What stands after `file://` is taken as it is, as the SDK
    does, and percent-decoded where no such file is there; in a root the decoded name stays a name
    in it. The key of `s3://bucket/key` stands as it is.

    Raises:
        BatchPlaceError: a file lies, or a link leads, elsewhere.
        BatchFileError: a file is neither on this machine's disks nor in S3, or is not there, or is
            that of two entries.
        BatchStoreError: a store cannot be asked now.
    """
    within = roots if root is None else replace(roots, uris=(*roots.uris, _root(message, root)))
    places: list[FoundPlace] = []
    known: dict[str, str] = {}
    for uri in message.manifest:
        place = _locate(message, uri, root, within)
        same = place.location
        before = known.setdefault(same, uri)
        if len(known) == len(places):
            problem = f"is what two entries of `manifest` stand for here: {before} and {uri}"
            raise refusal(message, place.path or place.location, problem)
        places.append(place)
    return places


@contextmanager
def at_hand(message: BatchMessage, place: FoundPlace) -> Iterator[BatchFile]:
    """Give a file where its bytes can be read: an object is fetched once, until the block ends.

    Raises:
        BatchFileError: it is gone, or another version of it is there.
        BatchStoreError: its store does not give it now.
    """
    if place.path is not None:
        yield BatchFile(location=place.location, path=place.path)
        return
    etag = None if place.facts is None else place.facts.etag
    with ExitStack() as copies:
        try:
            with _told(message, place.location):
                path = copies.enter_context(local_file(place.location, etag))
        except FileNotFoundError as error:
            raise refusal(message, place.location, "is not there any more") from error
        yield BatchFile(location=place.location, path=path, facts=place.facts)


def _root(message: BatchMessage, root: str) -> str:
    """Give the URI of the root that the config names."""
    if scheme_of(root) in {"", "file"}:
        return to_uri(os.path.normpath(_local(root).absolute()))
    return _s3(message, root).rstrip("/")


def _locate(message: BatchMessage, uri: str, root: str | None, within: Roots) -> FoundPlace:
    if "\0" in unquote(uri):
        raise refusal(message, repr(uri), "has a NUL in its name")
    place = uri if root is None else root
    if scheme_of(place) not in {"", "file"}:
        return _object(message, uri, None if root is None else _s3(message, root), within)
    if root is not None:
        folder = _local(root)
        paths = [folder / one for one in _names(uri)]
    else:
        written = _local(uri)
        paths = [written, Path(unquote(str(written)))]
    for path in paths:
        if ".." in path.parts or not within.hold(to_uri(path.absolute())):
            raise _outside(message, path)
        if path.is_file():
            if leads_out(str(path), within):
                raise _outside(message, path)
            there = Path(os.path.realpath(path))
            return FoundPlace(location=to_uri(there), path=there)
    raise refusal(message, paths[0], "is not there, or is no file")


def _outside(message: BatchMessage, place: Path | str) -> BatchPlaceError:
    problem = f"{place} lies outside of `batch_roots`, so it was not opened"
    return BatchPlaceError(message.line, problem, message.stream, "manifest")


def _object(message: BatchMessage, uri: str, root: str | None, within: Roots) -> FoundPlace:
    if root is None:
        locations = [_s3(message, uri)]
    else:
        locations = [join_uri(root, one) for one in _names(uri)]
    for location in locations:
        if split_location(location)[1] is not None:
            raise refusal(message, location, "has a name that looks like a range of a file's bytes")
        if not within.hold(location):
            raise _outside(message, location)
        try:
            with _told(message, location):
                return FoundPlace(location=location, facts=look(location))
        except FileNotFoundError:
            continue
    raise refusal(message, locations[0], "is not there")


def _names(uri: str) -> list[str]:
    """Give the names in a root that may be meant: as it is written, then decoded."""
    name = uri.rpartition("/")[2]
    return [one for one in (name, unquote(name)) if "/" not in one]


def _local(uri: str) -> Path:
    _, separator, rest = uri.partition("://")
    return Path(rest.removeprefix("localhost")) if separator else Path(uri)


def _s3(message: BatchMessage, uri: str) -> str:
    """Give the URI of an object, or of a root, as it is written here."""
    if scheme_of(uri) not in S3_SCHEMES:
        raise refusal(message, uri, f"lies in a {scheme_of(uri)} storage; {_EXPECTED}")
    plain = as_s3(uri)
    try:
        split_object(plain)
    except InvalidValueError as error:
        raise refusal(message, uri, f"is no URI of an object; {_EXPECTED}") from error
    return plain


@contextmanager
def _told(message: BatchMessage, location: str) -> Iterator[None]:
    """Say of a store's failures what is wrong; that nothing is there is left to who asks."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if not tells_of_file(error):
            raise BatchStoreError(message.line, location, reason_of(error)) from error
        raise refusal(message, location, f"cannot be read ({reason_of(error)})") from error
