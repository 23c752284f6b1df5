"""Dagster's webserver, run as `python -m`, restricted to requests from its own pages.

The webserver has no login, and any page open in a browser can send it requests, by a link to
/graphql or by a form. This module only refuses such requests.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from ipaddress import ip_address
from typing import Any

from dagster_webserver import cli
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_READING = {"GET", "HEAD", "OPTIONS"}
_PREFLIGHTED = ("application/json", "application/graphql")
_POLICY_VIOLATION = 1008


class OwnPagesOnly:
    """Middleware that refuses requests from other pages, and to foreign names of this host."""

    def __init__(self, app: Callable[[_Scope, _Receive, _Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Refuse a request, or pass it to the application."""
        problem = None
        if scope["type"] in {"http", "websocket"}:
            problem = refusal(scope.get("method", "GET"), scope["path"], Headers(scope=scope))
        if problem is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": problem})
        else:
            await PlainTextResponse(f"{problem}\n", status_code=403)(scope, receive, send)


def refusal(method: str, path: str, headers: Mapping[str, str]) -> str | None:
    """Return why a request is refused, or None if it is not. Header names are in lower case.

    The host must be this machine, because a foreign host name may resolve to it. Browsers send the
    origin of a request that may change something, and a preflight request before JSON.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if not _is_this_machine(host):
        return "Only requests to 127.0.0.1 and localhost are accepted; nothing was done."
    if origin is not None and origin.partition("://")[2] != host:
        return "The request came from a page of another server; nothing was done."
    if path.rstrip("/").endswith("/graphql") and "upgrade" not in headers:
        if method in _READING and "text/html" not in headers.get("accept", ""):
            return "Requests must use POST; nothing was done."
        is_json = headers.get("content-type", "").startswith(_PREFLIGHTED)
        if method not in _READING and not is_json:
            return "Requests must be application/json; nothing was done."
    return None


def _is_this_machine(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _guarded(*args: Any, **kwargs: Any) -> Starlette:
    app = create_app_from_workspace_process_context(*args, **kwargs)
    app.add_middleware(OwnPagesOnly)
    return app


if __name__ == "__main__":
    # The command line of the webserver has no option for middleware.
    cli.create_app_from_workspace_process_context = _guarded  # type: ignore[attr-defined]
    cli.main()  # type: ignore[no-untyped-call]
