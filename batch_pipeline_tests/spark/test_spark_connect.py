"""Clients of a Spark Connect server, which here answers without Spark."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any
from uuid import uuid4

import pytest

from batch_pipeline.spark.spark_connect import ConnectSession

grpc: Any = import_module("grpc")  # this and the messages have no types
messages: Any = import_module("pyspark.sql.connect.proto.base_pb2")


class Server:
    """Answers like Spark, and does not know the sessions from before a restart."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._id = str(uuid4())

    def config(self, request: Any, context: Any) -> Any:
        if request.client_observed_server_side_session_id not in {"", self._id}:
            context.abort(grpc.StatusCode.NOT_FOUND, "INVALID_HANDLE.SESSION_CHANGED")
        pairs = [messages.KeyValue(key=key, value="UTC") for key in request.operation.get.keys]
        return messages.ConfigResponse(
            session_id=request.session_id, server_side_session_id=self._id, pairs=pairs
        )

    def release(self, request: Any, _: Any) -> Any:
        return messages.ReleaseSessionResponse(session_id=request.session_id)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def remote(server: Server) -> Iterator[str]:
    """The address of the running server."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            function, kind.FromString, lambda answer: answer.SerializeToString()
        )
        for name, function, kind in (
            ("Config", server.config, messages.ConfigRequest),
            ("ReleaseSession", server.release, messages.ReleaseSessionRequest),
        )
    }
    service = grpc.method_handlers_generic_handler("spark.connect.SparkConnectService", handlers)
    with ThreadPoolExecutor() as threads:
        running = grpc.server(threads, handlers=(service,))
        port = running.add_insecure_port("127.0.0.1:0")
        running.start()
        yield f"sc://127.0.0.1:{port}"
        running.stop(None).wait()


def test_session_of_restarted_server_is_not_alive(server: Server, remote: str) -> None:
    session = ConnectSession(remote, {})
    assert session.is_alive()
    server.restart()
    assert not session.is_alive()
    session.close()


def test_variables_of_other_programs_do_not_affect_session_on_this_machine(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No proxy can reach the loopback interface of this machine."""
    monkeypatch.setenv("MASTER", "spark://other:7077")
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        session = ConnectSession(remote, {})
        assert session.is_alive()
        session.close()
