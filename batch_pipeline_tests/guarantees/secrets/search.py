"""Searching for canaries: in folders, databases, buckets, texts; it counts what it has seen."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from batch_pipeline_tests.guarantees.secrets.canaries import Canaries

_TABLES = """
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'm') AND n.nspname !~ '^(pg_|information_schema)'
"""


@dataclass(slots=True)
class Search:
    """Looks into one place after the other, and keeps where a canary was."""

    canaries: Canaries
    places: int = 0
    octets: int = 0
    hits: list[str] = field(default_factory=list)

    def text(self, where: str, content: str | bytes) -> None:
        """Look into a text, and into the name of the place itself."""
        some = content.encode("utf-8", "replace") if isinstance(content, str) else content
        self.places += 1
        self.octets += len(some)
        for name in sorted(self.canaries.found_in(some) | self.canaries.found_in(where.encode())):
            self.hits.append(f"{name}: in {where}")

    def folder(self, folder: Path, *, but: Iterable[Path] = ()) -> None:
        """Look into each file below a folder, its name and where a link leads."""
        left_out = set(but)
        for path in _files(folder):
            if path.is_symlink():
                self.text(str(path), str(path.readlink()))
            elif path.is_file() and path not in left_out:
                self.text(str(path), path.read_bytes())

    def database(self, url: str) -> None:
        """Look into each row of each table; columns of bytes are looked at unpacked, too."""
        with psycopg.connect(url) as connection:
            for schema, table in connection.execute(_TABLES).fetchall():
                found = connection.execute(
                    sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, table))
                )
                for number, row in enumerate(found):
                    for value in row:
                        where = f"row {number} of {schema}.{table}"
                        self.text(where, value if isinstance(value, bytes) else str(value))

    def bucket(self, client: Any, name: str) -> None:
        """Look into each object, its key and what is kept beside it."""
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for one in page.get("Contents", ()):
                answer = client.get_object(Bucket=name, Key=one["Key"])
                self.text(f"object {one['Key']}", answer["Body"].read())
                self.text(f"headers of {one['Key']}", str(answer["ResponseMetadata"]))


def _files(folder: Path) -> Iterator[Path]:
    for above, _, names in os.walk(folder):
        yield from (Path(above, name) for name in names)
