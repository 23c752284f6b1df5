"""A client's session on a Spark Connect server; fails fast if the server cannot be used."""

import importlib
import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batch_pipeline.model.errors import InvalidValueError, SparkUnavailableError
from batch_pipeline.spark.packed_archive import attach_archive, check_archive
from batch_pipeline.spark.sessions import launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import DefaultChannelBuilder

CONNECT_TIMEOUT_SECONDS = 5
SESSION_PARAMETER = "session_id"
_MODE_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"
_ADDRESS_FORM = "sc://host:port or sc://host:port/;token=…"


class ConnectSession:
    """A client session on the server at `remote`."""

    def __init__(self, remote: str, conf: dict[str, str], *, packed: Path | None = None) -> None:
        """Connect; only settings that a server lets its clients choose are applied.

        If `remote` has a session id, that session is used and stays open for others, else a new one
        that ends with this. `packed` is the archive of what tasks import; it is uploaded.

        Raises:
            InvalidValueError: `remote` is not a Spark Connect address.
            ConfigurationError: the archive is not there, or for another Python or release.
            SparkUnavailableError: the server does not answer or refuses the token.
        """
        self._remote = _localhost(remote)
        if packed is not None:
            check_archive(packed)
        check(self._remote)
        self.session = self._open(conf)
        if packed is not None:
            attach_archive(self.session, packed)

    def open(self) -> "SparkSession":
        """Return the session."""
        return self.session

    def is_alive(self) -> bool:
        """Return whether the server answers and still knows the session."""
        from pyspark.errors import PySparkException

        with suppress(SparkUnavailableError, PySparkException):
            check(self._remote)
            return bool(self.session.version)
        return False

    def close(self) -> None:
        """Disconnect, and release the session on the server unless it is shared."""
        self.session.stop()
        os.environ.pop(_MODE_VARIABLE, None)

    def _open(self, conf: dict[str, str]) -> "SparkSession":
        from pyspark.sql import SparkSession
        from pyspark.sql.connect.client.retries import DefaultPolicy

        options = launch.session_conf(conf)
        builder = SparkSession.builder.remote(self._remote).config(map=dict(options))
        session: Any = builder.create()  # its Connect class has more than the declared type
        session.release_session_on_close = without_session_id(self._remote) == self._remote
        # About ten seconds in all. pyspark's own policy waits more than ten minutes for a server
        # that has ended.
        policy = DefaultPolicy(max_retries=8, max_backoff=2000)
        session.client.set_retry_policies([policy])
        opened: SparkSession = session
        return opened


def without_session_id(remote: str) -> str:
    """Return the address without its session id, if it has one."""
    address, separator, parameters = remote.partition("/;")
    kept = [
        parameter
        for parameter in parameters.split(";")
        if not parameter.startswith(f"{SESSION_PARAMETER}=")
    ]
    return f"{address}{separator}{';'.join(kept)}"


def check(remote: str, timeout_seconds: float = CONNECT_TIMEOUT_SECONDS) -> None:
    """Send the server at `remote` one request that needs its token and changes nothing there.

    It releases a session that does not exist.

    Raises:
        InvalidValueError: `remote` is not a Spark Connect address.
        SparkUnavailableError: the server does not answer in time or refuses the token.
    """
    from pyspark.sql.connect.proto import ReleaseSessionRequest, UserContext

    grpc = importlib.import_module("grpc")  # this and the stub have no types
    stub = importlib.import_module("pyspark.sql.connect.proto.base_pb2_grpc")
    builder = _channel_builder(remote)
    address = f"sc://{builder.endpoint}"
    _check_port(builder, address, timeout_seconds)
    request = ReleaseSessionRequest(
        session_id=str(uuid.uuid4()), user_context=UserContext(user_id=launch.APP_NAME)
    )
    builder.setChannelOption(
        "grpc.use_local_subchannel_pool", 1
    )  # without the back-off of earlier calls
    with builder.toChannel() as channel:
        try:
            stub.SparkConnectServiceStub(channel).ReleaseSession(
                request, metadata=builder.metadata(), timeout=timeout_seconds
            )
        except grpc.RpcError as error:
            code = error.code()
            if code.name in {"UNAUTHENTICATED", "PERMISSION_DENIED"}:
                reason = "it refuses the token" if builder.token else "it requires a token"
            else:
                reason = f"it answers {code.name}"
            raise SparkUnavailableError(address, reason) from error


def _check_port(builder: "DefaultChannelBuilder", address: str, timeout_seconds: float) -> None:
    host, _, port = builder.endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_seconds).close()
    except OSError as error:
        raise SparkUnavailableError(address, error.strerror or "no answer in time") from error


def _channel_builder(remote: str) -> "DefaultChannelBuilder":
    from pyspark.errors import PySparkValueError
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        return DefaultChannelBuilder(remote)
    except (PySparkValueError, ValueError) as error:
        shown = remote.partition("/;")[0].partition(";")[0]
        raise InvalidValueError("the Spark Connect address", shown, _ADDRESS_FORM) from error


def _localhost(remote: str) -> str:
    # pyspark sends a token without TLS to the host named `localhost` only.
    for loopback in ("sc://127.0.0.1", "sc://[::1]"):
        if remote.startswith((f"{loopback}:", f"{loopback}/")):
            return remote.replace(loopback, "sc://localhost", 1)
    return remote
