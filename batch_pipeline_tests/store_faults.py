"""A proxy on loopback that injects faults into requests to the S3 server of the tests.

Requests without a fault are forwarded unchanged, including their signature. All are recorded.
"""

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
_TIMEOUT_SECONDS = 60


class Deed(StrEnum):
    """The kinds of faults."""

    ANSWER = "answer"  # respond with an error, and do not forward the request
    SAY = "say"  # respond with the body of the fault and status 200, and do not forward
    CUT = "cut"  # forward, and close the connection after some bytes of the response body
    LOSE = "lose"  # forward, and close the connection without a response
    DROP = "drop"  # close the connection after some bytes of the request body
    HANG = "hang"  # do not respond


@dataclass(slots=True, kw_only=True)
class Fault:
    """A fault of the next `times` requests that match."""

    deed: Deed
    method: str = ""  # any if empty
    target: str = ""  # part of the path or of the query
    times: int = 1
    skip: int = 0  # number of matching requests to forward first
    status: int = 503
    code: str = "SlowDown"
    body: str = ""  # additional elements of the error
    root: str = ""  # the element around the error, if any
    headers: Mapping[str, str] = field(default_factory=dict)
    after_bytes: int = 0

    def matches(self, method: str, target: str) -> bool:
        """Return whether a request gets the fault, and count it."""
        if self.times == 0 or self.method not in {"", method} or self.target not in target:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Faults:
    """The faults of a proxy, and the `requests` that it received, as `GET /bucket/key?…`."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.requests: list[str] = []
        self.sums: list[str] = []  # SHA-256 checksums of the requests
        self.ended = threading.Event()
        self._faults: list[Fault] = []
        self._mutex = threading.Lock()
        self.endpoint = ""

    def add(self, *faults: Fault) -> None:
        """Add faults. A request gets the first one that matches."""
        with self._mutex:
            self._faults.extend(faults)

    def slow_down(self, times: int, **kind: Any) -> None:
        """Respond with `SlowDown`."""
        self.add(Fault(deed=Deed.ANSWER, times=times, **kind))

    def refuse(self, status: int, code: str, **kind: Any) -> None:
        """Respond with an error to all matching requests from now on."""
        kind.setdefault("times", 1_000)
        self.add(Fault(deed=Deed.ANSWER, status=status, code=code, **kind))

    def count(self, start: str) -> int:
        """Count the requests that start with a text."""
        return sum(request.startswith(start) for request in self.requests)

    def _next_fault(self, method: str, target: str, checksum: str | None) -> Fault | None:
        with self._mutex:
            self.requests.append(f"{method} {target}")
            self.sums.extend([] if checksum is None else [checksum])
            return next((fault for fault in self._faults if fault.matches(method, target)), None)


@contextmanager
def proxy(store: str) -> Iterator[Faults]:
    """Start a proxy for a store on a free port, and stop it at the end of the block."""
    faults = Faults(store)
    handler = type("Handler", (_Handler,), {"faults": faults})
    with _Server(("127.0.0.1", 0), handler) as server:
        faults.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield faults
        finally:
            faults.ended.set()
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    """A server with a thread for each connection, which it does not join at the end."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that clients close."""


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    faults: Faults

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing."""

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Return the same function for all methods: `do_GET` and others."""
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        checksum = self.headers.get("x-amz-checksum-sha256")
        fault = self.faults._next_fault(self.command, self.path, checksum)
        length = int(self.headers.get("Content-Length", 0))
        if fault is not None and fault.deed in {Deed.DROP, Deed.HANG}:
            self.rfile.read(min(length, fault.after_bytes))
            if fault.deed is Deed.HANG:
                self.faults.ended.wait(_TIMEOUT_SECONDS)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if fault is not None and fault.deed in {Deed.ANSWER, Deed.SAY}:
            self._send_error(fault)
            return
        status, headers, response = self._forward(body)
        if fault is not None and fault.deed is Deed.LOSE:
            self.close_connection = True
            return
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP_HEADERS:
                self.send_header(name, value)
        content_length = str(len(response))
        if self.command == "HEAD":
            names = {name.lower(): value for name, value in headers}
            content_length = names.get("content-length", "0")
        self.send_header("Content-Length", content_length)
        self.end_headers()
        if fault is not None:
            response = response[: fault.after_bytes]
            self.close_connection = True
        with suppress(ConnectionError):  # a client may close the connection early
            self.wfile.write(response)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        store = http.client.HTTPConnection(
            urlsplit(self.faults.store).netloc, timeout=_TIMEOUT_SECONDS
        )
        store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP_HEADERS:
                store.putheader(name, value)
        store.putheader("Content-Length", str(len(body)))
        store.endheaders(body)
        try:
            response = store.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            store.close()

    def _send_error(self, fault: Fault) -> None:
        elements = f"<Code>{fault.code}</Code><Message>said by a test.</Message>{fault.body}"
        error = f"<Error>{elements}</Error>"
        text = (f"<{fault.root}>{error}</{fault.root}>" if fault.root else error).encode()
        if fault.deed is Deed.SAY:
            text = fault.body.encode()
        self.send_response_only(200 if fault.deed is Deed.SAY else fault.status)
        for name, value in fault.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
