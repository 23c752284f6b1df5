"""The ways to the embedded server: its socket, which asks for no password, and its own user.

A server that root starts runs as another user. Nothing is started or connected to here.
"""

import os
import pwd
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Of a process's environment: what programs of Postgres look at, and no secret of anybody's.
_ENVIRONMENT = {"HOME", "LANG", "PATH", "TMPDIR", "TZ"}
_PREFIXES = ("DYLD_", "LC_", "LD_", "PG")


def private_socket_folder(data: Path, proposed: Path, user: str | None) -> Path:
    """Give a folder for the socket that nobody else can enter: `proposed`, unless it is another's.

    Who reaches the socket is the superuser of the database. The data folder is closed already;
    another folder lies where everybody may have made one before.
    """
    if proposed == data:
        return data
    owner = os.geteuid() if user is None else pwd.getpwnam(user).pw_uid
    found = proposed.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {owner, os.geteuid()}:
        proposed = Path(tempfile.mkdtemp(prefix="bp-"))
    if user is not None:
        os.chown(proposed, owner, -1)
    proposed.chmod(0o700)
    return proposed


def let_through(path: Path, user: str) -> None:
    """Let another user go through the folders above a path; it reads none, and nobody else does."""
    known = pwd.getpwnam(user)
    for folder in path.parents:
        found = folder.stat()
        if _may_enter(found, known):
            continue
        if found.st_mode & stat.S_IRWXG:  # somebody's group, which keeps what it may
            folder.chmod(stat.S_IMODE(found.st_mode) | stat.S_IXOTH)
        else:
            os.chown(folder, -1, known.pw_gid)
            folder.chmod(stat.S_IMODE(found.st_mode) | stat.S_IXGRP)


def as_user(user: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """Give what `subprocess` needs to run a program of Postgres as a user, None for this one."""
    told = {
        name: value
        for name, value in environment.items()
        if name in _ENVIRONMENT or name.startswith(_PREFIXES)
    }
    if user is None:
        return {"env": told}
    return {"env": told, "user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _may_enter(found: os.stat_result, known: pwd.struct_passwd) -> bool:
    if found.st_uid == known.pw_uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == known.pw_gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)
