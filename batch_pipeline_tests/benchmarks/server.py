"""A server of a benchmark's own: as users run it, with its usual flush, gone afterwards."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from batch_pipeline.inventory.server import embedded


@contextmanager
def server(**settings: str) -> Iterator[str]:
    """Start an embedded server with some settings changed and give its URL."""
    folder = Path(tempfile.mkdtemp(prefix="bp-"))
    data = folder / "postgres"
    url = embedded.ensure_running(data)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            for name, value in settings.items():
                connection.execute(f"ALTER SYSTEM SET {name} = {value}")
            connection.execute("SELECT pg_reload_conf()")
        yield url
    finally:
        embedded.release(data)
        shutil.rmtree(folder)
