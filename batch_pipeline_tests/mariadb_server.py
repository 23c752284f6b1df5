"""A MariaDB server for tests, with a temporary folder, on a Unix socket."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batch_pipeline_tests.concurrency import eventually


@contextmanager
def mariadb_server() -> Iterator[str]:
    """Start a server, and yield the URL of its system database for a user with all privileges."""
    folder = Path(tempfile.mkdtemp(prefix="bp-"))  # socket paths must be short
    user = _unprivileged_user()
    if user is not None:
        shutil.chown(folder, user)
    data, socket = folder / "data", folder / "socket"
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db"]
    install += ["--auth-root-authentication-method=normal"]
    subprocess.run(install, user=user, check=True, capture_output=True)
    command = ["mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket}"]
    command += ["--skip-networking", "--innodb-flush-log-at-trx-commit=0"]
    command += ["--innodb-buffer-pool-size=32M", "--innodb-lock-wait-timeout=5"]
    command += ["--character-set-server=utf8mb4"]
    command += ["--default-time-zone=+00:00", "--sql-mode=STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO"]
    log = folder / "log"
    with log.open("w") as file:
        server = subprocess.Popen(command, user=user, stdout=file, stderr=file)
    try:
        eventually(lambda: "ready for connections" in log.read_text())
        yield f"mysql+pymysql://root@localhost/mysql?unix_socket={socket}"
    finally:
        server.terminate()
        server.wait(300)
        shutil.rmtree(folder)


def _unprivileged_user() -> str | None:
    """Return another user if this one is root, because the server refuses to run as root."""
    if os.geteuid() != 0:
        return None
    return next(name for name in ("mysql", "nobody") if _exists(name))


def _exists(user: str) -> bool:
    return any(entry.pw_name == user for entry in pwd.getpwall())
