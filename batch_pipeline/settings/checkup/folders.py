"""Looks at the places of a home and of streams: are they there, may we, may others, how full?

Nothing is made or written, not even to see whether it can be.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import psutil

from batch_pipeline.model.checks import Finding, Level, failure, fine, warning
from batch_pipeline.model.location import shown, to_path
from batch_pipeline.model.stream import Source, Stream
from batch_pipeline.settings.home import Home
from batch_pipeline.settings.units import format_bytes
from batch_pipeline.storage.errors import reason_of
from batch_pipeline.storage.filesystem import filesystem_of

_OF_OTHERS = 0o066  # to read and write; a server that root starts as another user passes through
_LITTLE = 2**30
_TOO_LITTLE = 100 * 2**20
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, never written
_LITTLE_SHARED = 64 * 2**20  # what containers have where nobody asks for more
_READ, _WRITE = os.R_OK | os.X_OK, os.R_OK | os.W_OK | os.X_OK


def check_home(home: Home) -> Iterator[Finding]:
    """Look at the home: is it ours alone, can it be written, and who works in it?"""
    if not _is_there(home.path):
        yield from _absent("home", home.path, "the first command that needs it makes it")
        return
    facts = home.path.stat()
    if not os.access(home.path, _WRITE):
        yield failure("home", f"{home.path} cannot be written. {_right(home.path)}")
        return
    if facts.st_mode & _OF_OTHERS:
        text = (
            f"others may read {home.path} (mode {facts.st_mode & 0o777:04o}), where the database "
            f"and the logs lie. Run `chmod 700 {home.path}`."
        )
        yield warning("home", text)
    if facts.st_uid != os.geteuid():
        text = f"{home.path} belongs to another user (id {facts.st_uid}). Take a home of your own."
        yield warning("home", text)
    holder = home.holder()
    used = "nobody works in it" if holder is None else f"{holder} works in it"
    yield fine("home", f"{home.path}; {used}.")


def check_disks(home: Home, streams: Iterable[Stream]) -> Iterator[Finding]:
    """Look how much is free on the disks that are written to, and as shared memory."""
    places = {"the home": home.path, "temporary files": Path(tempfile.gettempdir())}
    for stream in streams:
        if filesystem_of(stream.storage.root).is_local:
            places[f"files of {stream.name}"] = Path(to_path(stream.storage.root))
    disks: dict[int, tuple[Path, list[str]]] = {}
    for name, place in places.items():
        path = _nearest(place)
        disks.setdefault(path.stat().st_dev, (path, []))[1].append(name)
    for path, names in disks.values():
        yield _room("disk", path, f"for {', '.join(names)}", (_LITTLE, _TOO_LITTLE))
    if _SHARED_MEMORY.is_dir():
        yield _room("memory", _SHARED_MEMORY, "for PostgreSQL and Spark", (_LITTLE_SHARED, 2**20))


def check_places(stream: Stream, now: datetime) -> Iterator[Finding]:
    """Look whether a stream's files can be read, and what it writes be written.

    `now` is the time of this machine, with which stores are compared.
    """
    yield from _place(stream.name, "storage.root", stream.storage.root, _WRITE, now)
    if isinstance(stream.source, Source):
        yield from _place(stream.name, "source.uri", stream.source.uri, _READ, now)


def _place(name: str, key: str, uri: str, rights: int, now: datetime) -> Iterator[Finding]:
    if not filesystem_of(uri).is_local:
        yield from _bucket(name, key, uri, now)
        return
    path = Path(to_path(uri))
    if not _is_there(path):
        if rights == _WRITE:
            yield from _absent(name, path, f"the first batch makes it ({key})")
        else:
            text = f"{path} is not there ({key}): nothing lands. Make it, or correct the file."
            yield warning(name, text)
    elif not path.is_dir():
        yield failure(name, f"{path} is no folder ({key}). Name another one, or move it away.")
    elif not os.access(path, rights):
        verb = "written" if rights == _WRITE else "read"
        yield failure(name, f"{path} cannot be {verb} ({key}). {_right(path)}")


def _bucket(name: str, key: str, uri: str, now: datetime) -> Iterator[Finding]:
    try:
        told = filesystem_of(uri).ping(uri)
    except OSError as error:
        yield failure(name, f"{shown(uri)} cannot be listed ({key}): {reason_of(error)}.")
        return
    if told is not None:
        yield from clock(f"the store of {shown(uri)}", told, now)


def clock(whose: str, told: datetime, now: datetime) -> Iterator[Finding]:
    """Compare another clock with that of this machine; nothing is said while they agree."""
    apart = abs((told - now).total_seconds())
    if apart > 60:
        text = (
            f"this machine is {apart:,.0f} seconds apart from {whose}. Leases do not mind, they go "
            f"by the database alone; stores refuse from 15 minutes on, and ages of files are "
            f"wrong. Set the clock by NTP."
        )
        yield warning("clock", text)


def _absent(subject: str, path: Path, made_by: str) -> Iterator[Finding]:
    above = _nearest(path)
    if os.access(above, _WRITE):
        yield fine(subject, f"{path} is not there yet; {made_by}.")
    else:
        text = f"{path} is not there and cannot be made in {above}. {_right(above)}"
        yield failure(subject, text)


def _right(path: Path) -> str:
    user = psutil.Process().username()
    return f"Give the user {user} the right to, or take another place than {path}."


def _nearest(path: Path) -> Path:
    """Give what is there of a path."""
    return next(one for one in (path, *path.parents) if _is_there(one))


def _is_there(path: Path) -> bool:
    """Tell whether something is there that can be looked at."""
    try:
        return path.exists()
    except OSError:  # a folder above keeps us out
        return False


def _room(subject: str, path: Path, purpose: str, bounds: tuple[int, int]) -> Finding:
    room = shutil.disk_usage(path)
    little, too_little = bounds
    text = f"{format_bytes(room.free)} of {format_bytes(room.total)} free at {path}, {purpose}."
    if room.free >= little:
        return fine(subject, text)
    level = Level.WARN if room.free >= too_little else Level.FAIL
    step = "Make room: `batch-pipeline gc --dry-run` tells what is not needed."
    if subject == "memory":
        step = "Give the container more, for example `--shm-size 256m`."
    return Finding(subject=subject, level=level, text=f"{text} {step}")
