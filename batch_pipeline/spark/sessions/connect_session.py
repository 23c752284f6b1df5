"""Opens a client session on a Spark Connect server, failing fast when it cannot be used."""

import importlib
import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batch_pipeline.domain.errors import InvalidValueError, SparkUnavailableError
from batch_pipeline.spark.clusters.archive_note import check_archive
from batch_pipeline.spark.clusters.shipped import bring_along
from batch_pipeline.spark.sessions import launch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import DefaultChannelBuilder

ANSWER_TIMEOUT_SECONDS = 5
SESSION_PARAMETER = "session_id"
MODE_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"
FORM = "sc://host:port or sc://host:port/;token=…"


class ConnectSession:
    """A client session on the server at `remote`."""

    def __init__(self, remote: str, conf: dict[str, str], *, packed: Path | None = None) -> None:
        """Connect; only settings that a server lets its clients choose are applied.

        Where `remote` names a session, that is used, which stays for others; else a new one, which
        ends with this. `packed` is the archive of what executors import; it is sent to the server.

        Raises:
            InvalidValueError: `remote` is no Spark Connect address.
            PackedUnusableError: the archive is not there, or for another Python or release.
            SparkUnavailableError: the server does not answer or refuses the token.
        """
        self._remote = _localhost(remote)
        if packed is not None:
            check_archive(packed)
        check(self._remote)
        self.session = self._opened(conf)
        if packed is not None:
            bring_along(self.session, packed)

    def is_alive(self) -> bool:
        """Tell whether the server answers and still knows the session."""
        from pyspark.errors import PySparkException

        with suppress(SparkUnavailableError, PySparkException):
            check(self._remote)
            return bool(self.session.version)
        return False

    def close(self) -> None:
        """Disconnect, and release the session on the server unless others use it, too."""
        self.session.stop()
        os.environ.pop(MODE_VARIABLE, None)

    def _opened(self, conf: dict[str, str]) -> "SparkSession":
        from pyspark.sql import SparkSession
        from pyspark.sql.connect.client.retries import DefaultPolicy

        options = launch.session_conf(conf)
        builder = SparkSession.builder.remote(self._remote).config(map=dict(options))
        session: Any = builder.create()  # of Spark Connect, whose type has more
        session.release_session_on_close = unshared(self._remote) == self._remote
        # About ten seconds in all; pyspark's own policy waits more than ten minutes for a server
        # that is gone.
        policy = DefaultPolicy(max_retries=8, max_backoff=2000)
        session.client.set_retry_policies([policy])
        opened: SparkSession = session
        return opened


def unshared(remote: str) -> str:
    """Give the address without the session that it names, if any."""
    address, mark, told = remote.partition("/;")
    kept = [one for one in told.split(";") if not one.startswith(f"{SESSION_PARAMETER}=")]
    return f"{address}{mark}{';'.join(kept)}"


def check(remote: str, timeout_seconds: float = ANSWER_TIMEOUT_SECONDS) -> None:
    """Ask the server at `remote` one thing that needs its token and leaves nothing behind.

    Raises:
        InvalidValueError: `remote` is no Spark Connect address.
        SparkUnavailableError: the server does not answer in time or refuses the token.
    """
    from pyspark.sql.connect.proto import ReleaseSessionRequest, UserContext

    grpc = importlib.import_module("grpc")  # this and the stub come without types
    stub = importlib.import_module("pyspark.sql.connect.proto.base_pb2_grpc")
    builder = _channel_builder(remote)
    address = f"sc://{builder.endpoint}"
    _check_port(builder, address, timeout_seconds)
    request = ReleaseSessionRequest(
        session_id=str(uuid.uuid4()), user_context=UserContext(user_id=launch.APP_NAME)
    )
    builder.setChannelOption("grpc.use_local_subchannel_pool", 1)  # no back-off from earlier calls
    with builder.toChannel() as channel:
        try:
            stub.SparkConnectServiceStub(channel).ReleaseSession(
                request, metadata=builder.metadata(), timeout=timeout_seconds
            )
        except grpc.RpcError as error:
            code = error.code()
            if code.name in {"UNAUTHENTICATED", "PERMISSION_DENIED"}:
                reason = "it refuses the token" if builder.token else "it wants a token"
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
        raise InvalidValueError("the Spark Connect address", shown, FORM) from error


def _localhost(remote: str) -> str:
    # pyspark sends a token without TLS to the host named `localhost` only.
    for loopback in ("sc://127.0.0.1", "sc://[::1]"):
        if remote.startswith((f"{loopback}:", f"{loopback}/")):
            return remote.replace(loopback, "sc://localhost", 1)
    return remote
