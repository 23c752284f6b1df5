"""What the audit of the lock file says: known flaws fail it, and silence is no good news."""

import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
ADVISORY = {
    "id": "PYSEC-2026-1",
    "modified": "2026-01-01T00:00:00Z",
    "summary": "a flaw of this test",
    "affected": [],
}


@contextmanager
def advisories(*flawed: str) -> Iterator[str]:
    """Give the address of a service that knows a flaw of some packages."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            known = {"vulns": [{"id": ADVISORY["id"], "modified": ADVISORY["modified"]}]}
            found = [known if one["package"]["name"] in flawed else {} for one in asked]
            self._answer({"results": found})

        def do_GET(self) -> None:
            self._answer(ADVISORY)

        def _answer(self, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            pass

    with HTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def audit(service: str, cache: Path) -> "subprocess.CompletedProcess[str]":
    """Ask a service and nobody else."""
    variables = {
        "AUDIT_SERVICE": service,
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
        "UV_CACHE_DIR": str(cache),
        "UV_HTTP_RETRIES": "0",
    }
    # pytest is run by uv, which says where it is.
    uv = [os.environ["UV"]] if "UV" in os.environ else [sys.executable, "-m", "uv"]
    return subprocess.run(
        [PROJECT / ".ci/audit", *uv],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_audit_without_flaws_passes(tmp_path: Path) -> None:
    """Expect exit code 0, after each package of the lock was asked for."""
    with advisories() as service:
        ended = audit(service, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "no known vulnerabilities" in ended.stdout + ended.stderr


def test_audit_of_a_flawed_package_fails_and_names_it(tmp_path: Path) -> None:
    """Expect exit code 1, the package and the advisory."""
    with advisories("dagster") as service:
        ended = audit(service, tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert "PYSEC-2026-1" in ended.stdout + ended.stderr
    assert "\ndagster " in ended.stdout + ended.stderr


def test_audit_that_nobody_answers_says_so(tmp_path: Path) -> None:
    """Expect neither success nor a flaw, but loud words."""
    ended = audit("http://127.0.0.1:9", tmp_path)
    assert ended.returncode == 75
    assert "NOT AUDITED" in ended.stderr


def test_lock_pins_every_file_by_its_digest() -> None:
    """Expect each package from the one index, and each of its files with a SHA-256."""
    lock = tomllib.loads((PROJECT / "uv.lock").read_text())
    packages = [one for one in lock["package"] if one["name"] != "batch-pipeline"]
    assert len(packages) > 100
    for one in packages:
        assert one["source"] == {"registry": "https://pypi.org/simple"}, one["name"]
        files = [*one.get("wheels", ()), *([one["sdist"]] if "sdist" in one else [])]
        assert files
        assert all(file["hash"].startswith("sha256:") for file in files), one["name"]
