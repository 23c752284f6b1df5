"""The audit of the lock file: known vulnerabilities fail it, and so does an unreachable service."""

import json
import os
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline_tests.acceptance.sandbox import CompletedCommand, run_program

PROJECT = Path(__file__).parents[2]
ADVISORY = {
    "id": "PYSEC-2026-1",
    "modified": "2026-01-01T00:00:00Z",
    "summary": "a vulnerability of this test",
    "affected": [],
}


@contextmanager
def advisories(*vulnerable: str) -> Iterator[str]:
    """Serve a vulnerability of some packages; yield the address."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            known = {"vulns": [{"id": ADVISORY["id"], "modified": ADVISORY["modified"]}]}
            results = [known if it["package"]["name"] in vulnerable else {} for it in queries]
            self._respond({"results": results})

        def do_GET(self) -> None:
            self._respond(ADVISORY)

        def _respond(self, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - overrides
            pass

    with HTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def audit(service: str, cache: Path) -> CompletedCommand:
    """Run the audit with this service as the only reachable one."""
    variables = {
        "AUDIT_SERVICE": service,
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
        "UV_CACHE_DIR": str(cache),
        "UV_HTTP_RETRIES": "0",
    }
    # If uv runs pytest, it sets this variable.
    uv = [os.environ["UV"]] if "UV" in os.environ else [sys.executable, "-m", "uv"]
    return run_program(PROJECT / ".ci/audit", *uv, env=os.environ | variables)


@pytest.mark.parametrize(
    ("vulnerable", "exit_code", "shown"),
    [
        ((), 0, ["no known vulnerabilities"]),
        (("dagster",), 1, ["PYSEC-2026-1", "\ndagster "]),
    ],
)
def test_audit_fails_for_a_vulnerable_package_and_names_it(
    tmp_path: Path, vulnerable: tuple[str, ...], exit_code: int, shown: list[str]
) -> None:
    with advisories(*vulnerable) as service:
        result = audit(service, tmp_path)
    assert result.returncode == exit_code, result.stderr
    assert all(text in result.stdout + result.stderr for text in shown)


def test_audit_with_an_unreachable_service_exits_75(tmp_path: Path) -> None:
    result = audit("http://127.0.0.1:9", tmp_path)
    assert result.returncode == 75
    assert "NOT AUDITED" in result.stderr


def test_lock_pins_every_file_by_its_digest() -> None:
    lock = tomllib.loads((PROJECT / "uv.lock").read_text())
    packages = [entry for entry in lock["package"] if entry["name"] != "batch-pipeline"]
    assert len(packages) > 100
    for package in packages:
        assert package["source"] == {"registry": "https://pypi.org/simple"}, package["name"]
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
        assert files
        assert all(file["hash"].startswith("sha256:") for file in files), package["name"]
