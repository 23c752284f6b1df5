"""A store that can be told to fail: a proxy on loopback in front of the one that tests talk to.

What no fault is set for passes unchanged, signature included. What it passed on is remembered.
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

_OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
_PATIENCE_SECONDS = 60


class Deed(StrEnum):
    """What is done to a request."""

    ANSWER = "answer"  # with an error, and not passed on
    SAY = "say"  # its body, as a page of HTML, and not passed on
    CUT = "cut"  # passed on; the connection ends after some bytes of the answer's body
    LOSE = "lose"  # passed on; the connection ends instead of an answer
    DROP = "drop"  # the connection ends after some bytes of the request's body
    HANG = "hang"  # nothing happens


@dataclass(slots=True, kw_only=True)
class Fault:
    """What is done to the next requests of a kind, so many `times`."""

    deed: Deed
    method: str = ""  # of any, where empty
    target: str = ""  # part of the path or of what follows it
    times: int = 1
    skip: int = 0  # so many pass before
    status: int = 503
    code: str = "SlowDown"
    body: str = ""  # further elements of the error
    root: str = ""  # the element around the error, where it is not the answer itself
    headers: Mapping[str, str] = field(default_factory=dict)
    after_bytes: int = 0

    def fits(self, method: str, target: str) -> bool:
        """Tell whether a request is of the kind, and count it."""
        if self.times == 0 or self.method not in {"", method} or self.target not in target:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Faults:
    """What a proxy does; `requests` are those that reached it, as `GET /bucket/key?…`."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.requests: list[str] = []
        self.sums: list[str] = []  # SHA-256 that bytes were sent with
        self.ended = threading.Event()
        self._set: list[Fault] = []
        self._mutex = threading.Lock()
        self.endpoint = ""

    def add(self, *faults: Fault) -> None:
        """Let the next requests fail; the first fault that fits counts."""
        with self._mutex:
            self._set.extend(faults)

    def slow_down(self, times: int, **kind: Any) -> None:
        """Be busy."""
        self.add(Fault(deed=Deed.ANSWER, times=times, **kind))

    def refuse(self, status: int, code: str, **kind: Any) -> None:
        """Answer everything of a kind with an error, from now on."""
        kind.setdefault("times", 1_000)
        self.add(Fault(deed=Deed.ANSWER, status=status, code=code, **kind))

    def count(self, start: str) -> int:
        """Count the requests that begin so."""
        return sum(request.startswith(start) for request in self.requests)

    def _met(self, method: str, target: str, checksum: str | None) -> Fault | None:
        with self._mutex:
            self.requests.append(f"{method} {target}")
            self.sums.extend([] if checksum is None else [checksum])
            return next((fault for fault in self._set if fault.fits(method, target)), None)


@contextmanager
def proxy(store: str) -> Iterator[Faults]:
    """Start a proxy in front of a store on a free port; it ends with the block."""
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
    """Serves each connection on a thread of its own, and waits for none at the end."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that clients end."""


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    faults: Faults

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Give what serves a method, `do_GET` and the like: the same for all."""
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        fault = self.faults._met(self.command, self.path, self.headers.get("x-amz-checksum-sha256"))
        length = int(self.headers.get("Content-Length", 0))
        if fault is not None and fault.deed in {Deed.DROP, Deed.HANG}:
            self.rfile.read(min(length, fault.after_bytes))
            if fault.deed is Deed.HANG:
                self.faults.ended.wait(_PATIENCE_SECONDS)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if fault is not None and fault.deed in {Deed.ANSWER, Deed.SAY}:
            self._answer(fault)
            return
        status, headers, answer = self._passed_on(body)
        if fault is not None and fault.deed is Deed.LOSE:
            self.close_connection = True
            return
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _OF_THE_CONNECTION:
                self.send_header(name, value)
        told = {name.lower(): value for name, value in headers}
        is_head = self.command == "HEAD"
        self.send_header(
            "Content-Length", told.get("content-length", "0") if is_head else str(len(answer))
        )
        self.end_headers()
        if fault is not None:
            answer = answer[: fault.after_bytes]
            self.close_connection = True
        with suppress(ConnectionError):  # a reader may go when it has enough
            self.wfile.write(answer)

    def _passed_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        store = http.client.HTTPConnection(
            urlsplit(self.faults.store).netloc, timeout=_PATIENCE_SECONDS
        )
        store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _OF_THE_CONNECTION:
                store.putheader(name, value)
        store.putheader("Content-Length", str(len(body)))
        store.endheaders(body)
        try:
            answer = store.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            store.close()

    def _answer(self, fault: Fault) -> None:
        said = f"<Code>{fault.code}</Code><Message>said by a test.</Message>{fault.body}"
        error = f"<Error>{said}</Error>"
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
