"""Tests of the search, without which an empty result would prove nothing."""

import base64
import gzip
import subprocess
import sys
import zlib
from pathlib import Path

import psycopg
import pytest

from batch_pipeline_tests.concurrency import eventually
from batch_pipeline_tests.guarantees.secrets.search import Search
from batch_pipeline_tests.guarantees.secrets.watcher import OWNER, Observations

CANARIES = {"one": "canary0123456789abcdef"}
WORD = CANARIES["one"].encode()


@pytest.mark.parametrize(
    "form",
    [
        b"password=%s;" % WORD,
        gzip.compress(b"x" * 99 + WORD),
        zlib.compress(b"x" * 99 + WORD),
        *(base64.b64encode(b"a" * length + b":" + WORD + b"more") for length in range(3)),
        WORD.hex().encode(),
    ],
    ids=["plain", "gzip", "zlib", "Base64", "Base64, offset 1", "Base64, offset 2", "hexadecimal"],
)
def test_search_finds_canary_in_each_encoding(form: bytes) -> None:
    search = Search(CANARIES)
    assert search.find_in(form) == {"one"}
    assert search.find_in(form[:12] + form[-12:]) == set()


def test_search_finds_canaries_in_files_names_links_and_databases(
    tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "a.txt").write_bytes(WORD)
    (tmp_path / f"{CANARIES['one']}.csv").write_bytes(b"")
    (tmp_path / "link").symlink_to(f"/{CANARIES['one']}")
    (tmp_path / "b.txt").write_bytes(b"nothing")
    search = Search(CANARIES)
    search.folder(tmp_path)
    assert len(search.hits) == 3
    assert (search.places, search.size_bytes) == (4, 22 + 0 + 23 + 7)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.kept (words jsonb, packed bytea)")
        row = (f'{{"a": ["{CANARIES["one"]}"]}}', zlib.compress(WORD))
        connection.execute("INSERT INTO public.kept VALUES (%s, %s)", row)
    search.database(database_url)
    assert search.hits[3:] == ["one: in row 0 of public.kept"] * 2


def test_watcher_observes_command_lines_sockets_and_files(tmp_path: Path) -> None:
    program = (
        "import socket, sys; one = socket.create_server(('0.0.0.0', 0)); "
        "two = socket.socket(socket.AF_UNIX); two.bind(sys.argv[2]); sys.stdin.read()"
    )
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "closed").write_bytes(WORD)
    (folder / "closed").chmod(0o600)
    (folder / "open").write_bytes(WORD)
    (folder / "open").chmod(0o644)
    command = [sys.executable, "-c", program, CANARIES["one"], str(folder / "socket")]
    with subprocess.Popen(command, stdin=subprocess.PIPE):
        observations = Observations()

        def has_sockets() -> bool:
            observations.poll(Search(CANARIES), folder)
            is_listed = str(folder / "socket") in observations.unix
            return is_listed and bool(observations.beyond_loopback)

        eventually(has_sockets)
    assert any(CANARIES["one"] in line for line in observations.command_lines)
    assert [address for _, address, _ in observations.beyond_loopback] == ["0.0.0.0"]  # noqa: S104 - the expected observation
    files = {Path(path).name: who for path, who in observations.secret_files.items()}
    assert files == {"closed": OWNER, "open": "others, mode 44"}
