"""The webserver of `dev` only accepts requests from its own pages and from programs."""

import asyncio
from typing import Any

import pytest

from batch_pipeline.defs.instance.dagster_webserver import OwnPagesOnly, refusal

HOST = {"host": "127.0.0.1:3000"}
JSON = {"content-type": "application/json"}
OWN = {"origin": "http://127.0.0.1:3000"}
OTHER = {"origin": "https://evil.example.org"}
PAGE = {"accept": "text/html,*/*"}


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        pytest.param("POST", "/graphql", HOST | JSON, id="program"),
        pytest.param("POST", "/graphql", HOST | JSON | OWN, id="own page"),
        pytest.param("GET", "/graphql", HOST | OWN | {"upgrade": "websocket"}, id="own websocket"),
        pytest.param("GET", "/graphql", HOST | PAGE, id="GraphQL playground"),
        pytest.param("GET", "/runs/1", HOST | PAGE, id="link from elsewhere"),
        pytest.param("GET", "/", {"host": "localhost:8080"}, id="tunnel"),
        pytest.param("GET", "/", {"host": "[::1]:3000"}, id="IPv6"),
        pytest.param("GET", "/", {"host": "localhost"}, id="no port"),
    ],
)
def test_request_of_own_page_or_program_is_accepted(
    method: str, path: str, headers: dict[str, str]
) -> None:
    assert refusal(method, path, headers) is None


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        pytest.param("POST", "/report_asset_check/x", HOST | JSON | OTHER, id="another page"),
        pytest.param("POST", "/graphql", HOST | JSON | {"origin": "null"}, id="opaque origin"),
        pytest.param("POST", "/graphql/", HOST | {"content-type": "text/plain"}, id="plain text"),
        pytest.param("POST", "/graphql", HOST, id="query in the URL"),
        pytest.param("GET", "/graphql", HOST | {"accept": "image/*"}, id="image"),
        pytest.param("HEAD", "/graphql", HOST, id="head"),
        pytest.param(
            "GET", "/graphql", HOST | OTHER | {"upgrade": "websocket"}, id="websocket of another"
        ),
        pytest.param("GET", "/", {"host": "evil.example.org:3000"}, id="DNS rebinding"),
        pytest.param("GET", "/", {"host": "localhost.evil.example.org"}, id="similar host name"),
        pytest.param("GET", "/", {"host": "10.0.0.7:3000"}, id="network address"),
        pytest.param("GET", "/", {}, id="no host"),
        pytest.param(
            "POST", "/graphql", HOST | JSON | {"origin": "http://127.0.0.1:3001"}, id="other port"
        ),
    ],
)
def test_request_of_another_page_is_rejected(
    method: str, path: str, headers: dict[str, str]
) -> None:
    assert str(refusal(method, path, headers)).endswith("; nothing was done.")


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("origin", [b"http://127.0.0.1:3000", b"https://evil.example.org"])
def test_rejected_requests_do_not_reach_the_application(kind: str, origin: bytes) -> None:
    calls, sent = [], []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["path"])

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    headers = [(b"host", b"127.0.0.1:3000"), (b"origin", origin), (b"upgrade", b"websocket")]
    scope = {"type": kind, "method": "GET", "path": "/graphql", "headers": headers}
    asyncio.run(OwnPagesOnly(application)(scope, receive, send))
    is_own = b"evil" not in origin
    assert calls == ["/graphql"] * is_own
    assert bool(sent) != is_own
    if not is_own:
        assert sent[0].get("status", 403) == 403
        assert sent[0]["type"] in {"http.response.start", "websocket.close"}
