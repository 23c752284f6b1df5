"""Searches for secrets in files, databases, buckets and texts, in any encoding.

Each secret is a canary: a random word that no other text contains.
"""

import base64
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

NAMES = (
    "inventory password",
    "password of the meta tables",
    "password of a named database",
    "password of a table's database",
    "password of a target",
    "password of a failing target",
    "key file of a target",
    "token of Spark Connect",
    "password in a dot-env file",
    "secret key of AWS",
    "session token of AWS",
    "password in an endpoint",
    "password in a stream file",
    "password in the URL of a queue",
    "password of Dagster's storage",
)
_TABLES = """
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'm') AND n.nspname !~ '^(pg_|information_schema)'
"""


def new_canaries() -> dict[str, str]:
    """Return a random word for each name."""
    return {name: f"canary{token_hex(12)}" for name in NAMES}


class Search:
    """A search for named canaries in many places."""

    def __init__(self, canaries: Mapping[str, str]) -> None:
        self.places = self.size_bytes = 0
        self.hits: list[str] = []
        self.canaries: set[str] = set()
        self._names: dict[bytes, str] = {}  # by encoded form
        for name, word in canaries.items():
            self.add(name, word)

    def add(self, name: str, word: str) -> None:
        """Search for another canary."""
        self.canaries.add(name)
        self._names |= dict.fromkeys(_forms(word.encode()), name)

    def find_in(self, content: bytes) -> set[str]:
        """Return the names of the canaries in some bytes: plain, compressed or in Base64."""
        contents = [*_decompressed(content)]
        return {
            name for form, name in self._names.items() if any(form in text for text in contents)
        }

    def text(self, where: str, content: str | bytes) -> None:
        """Search a text and the name of its location."""
        data = content.encode("utf-8", "replace") if isinstance(content, str) else content
        self.places += 1
        self.size_bytes += len(data)
        names = self.find_in(data) | self.find_in(where.encode())
        self.hits += [f"{name}: in {where}" for name in sorted(names)]

    def folder(self, folder: Path, *, exclude: Iterable[Path] = ()) -> None:
        """Search each file below a folder, its name, and the target if it is a link."""
        excluded = set(exclude)
        for path in files_below(folder):
            if path.is_symlink():
                self.text(str(path), str(path.readlink()))
            elif path.is_file() and path not in excluded:
                self.text(str(path), path.read_bytes())

    def database(self, url: str) -> None:
        """Search each value of each table."""
        with psycopg.connect(url) as connection:
            for schema, table in connection.execute(_TABLES).fetchall():
                query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, table))
                for number, row in enumerate(connection.execute(query)):
                    for value in row:
                        where = f"row {number} of {schema}.{table}"
                        self.text(where, value if isinstance(value, bytes) else str(value))

    def bucket(self, client: Any, name: str) -> None:
        """Search each object, its key and its headers."""
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for entry in page.get("Contents", ()):
                response = client.get_object(Bucket=name, Key=entry["Key"])
                self.text(f"object {entry['Key']}", response["Body"].read())
                self.text(f"headers of {entry['Key']}", str(response["ResponseMetadata"]))


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder."""
    for above, _, names in os.walk(folder):
        yield from (Path(above, name) for name in names)


def _forms(word: bytes) -> set[bytes]:
    """Return the encoded forms of a word, in Base64 at each offset."""
    forms = {word, quote(word.decode(), safe="").encode(), word.hex().encode()}
    for before in range(3):
        coded = base64.b64encode(bytes(before) + word).rstrip(b"=")
        whole = coded[(before * 8 + 5) // 6 : -1]
        forms |= {whole, whole.replace(b"+", b"-").replace(b"/", b"_")}
    return forms


def _decompressed(content: bytes) -> Iterator[bytes]:
    yield content
    with suppress(OSError, EOFError, zlib.error):
        if content[:2] == b"\x1f\x8b":
            yield gzip.decompress(content)
        elif content[:1] == b"\x78":
            yield zlib.decompress(content)
