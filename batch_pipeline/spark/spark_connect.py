"""Spark Connect: the session of a client, and a warm server on this machine.

A client fails fast if its server cannot be used. The warm server ends with the process that started
it.
"""

import importlib
import os
import random
import secrets
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from batch_pipeline.model.errors import InvalidValueError, SparkUnavailableError
from batch_pipeline.spark import driver, run_while_parent_lives
from batch_pipeline.spark.diagnostics import failure_reason
from batch_pipeline.spark.executor_archive import attach_archive, check_archive
from batch_pipeline.spark.java import write_file
from batch_pipeline.storage.filesystem import raise_as

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import DefaultChannelBuilder

START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 15
_SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SESSION_PARAMETER = "session_id"
_MODE_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"
_ADDRESS_FORM = "sc://host:port or sc://host:port/;token=…"

# Below the ports that systems assign to outgoing connections: such a connection, even our own check
# that the server answers, could take the port in the seconds until the server binds it.
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 50

# Jobs of several runs share the JVM. FIFO would start a job's tasks only when the jobs before it
# have none left; FAIR gives each running job its share of free cores. The file is needed because
# the pool that FAIR creates without a file is itself FIFO.
_POOLS = """\
<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
  </pool>
</allocations>
"""


class ConnectSession:
    """A client session on the server at `remote`."""

    def __init__(
        self,
        remote: str,
        conf: dict[str, str],
        *,
        packed: Path | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """Connect; only settings that a server lets its clients choose are applied.

        If `remote` has a session id, that session is used and stays open for others; otherwise a
        new session is created, which ends with this object. `packed` is the archive of the modules
        that tasks import; it is uploaded.

        Raises:
            InvalidValueError: `remote` is not a Spark Connect address.
            ConfigurationError: the archive does not exist, or is for another Python or release.
            SparkUnavailableError: the server does not answer or refuses the token.
        """
        from pyspark.errors import PySparkException

        self._remote = _localhost(remote)
        self._on_close = on_close
        if packed is not None:
            check_archive(packed)
        check(self._remote)
        session: SparkSession | None = None
        try:
            self.session = session = self._open(conf)
            if packed is not None:
                attach_archive(session, packed)
        except BaseException as error:
            if session is not None:
                with suppress(Exception):  # only the error above is reported
                    session.stop()
            os.environ.pop(_MODE_VARIABLE, None)
            grpc_error = importlib.import_module("grpc").RpcError
            if isinstance(error, (PySparkException, grpc_error)):
                raise SparkUnavailableError(
                    server_address(remote), failure_reason(error)
                ) from error
            raise

    def open(self) -> "SparkSession":
        """Return the session."""
        return self.session

    def open_engine(self) -> "SparkSession":
        """Return the session, because a client has no context."""
        return self.session

    def is_alive(self) -> bool:
        """Return whether the server answers and still knows the session."""
        from pyspark.errors import PySparkException

        with suppress(SparkUnavailableError, PySparkException):
            check(self._remote)
            # Not `version`, which pyspark keeps from the first answer.
            return bool(self.session.conf.get("spark.sql.session.timeZone"))
        return False

    def close(self) -> None:
        """Disconnect, and release the session on the server unless it is shared."""
        self.session.stop()
        os.environ.pop(_MODE_VARIABLE, None)
        if self._on_close is not None:
            self._on_close()

    def _open(self, conf: dict[str, str]) -> "SparkSession":
        from pyspark.sql.connect import session as client
        from pyspark.sql.connect.client.retries import DefaultPolicy

        builder: Any = client.SparkSession.builder.channelBuilder(_channel_builder(self._remote))
        os.environ[_MODE_VARIABLE] = "1"  # pyspark's functions read it
        session = builder.config(map=driver.session_conf(conf)).create()
        session.release_session_on_close = without_session_id(self._remote) == self._remote
        # About ten seconds in total. pyspark's own policy waits more than ten minutes for a server
        # that has ended.
        policy = DefaultPolicy(max_retries=8, max_backoff=2000)
        session.client.set_retry_policies([policy])
        opened: SparkSession = session
        return opened


def server_address(remote: str) -> str:
    """Return an address without its parameters, which include the token."""
    return remote.partition(";")[0].removesuffix("/")


def without_session_id(remote: str) -> str:
    """Return the address without its session id, if it has one."""
    address, separator, parameters = remote.partition("/;")
    kept = (one for one in parameters.split(";") if not one.startswith(f"{_SESSION_PARAMETER}="))
    return f"{address}{separator}{';'.join(kept)}"


def check(remote: str) -> None:
    """Send the server at `remote` one request that needs its token and changes nothing there.

    The request releases a session that does not exist.

    Raises:
        InvalidValueError: `remote` is not a Spark Connect address.
        SparkUnavailableError: the server does not answer in time or refuses the token.
    """
    from pyspark.sql.connect.proto import ReleaseSessionRequest, UserContext

    grpc = importlib.import_module("grpc")  # this and the stub have no types
    stub = importlib.import_module("pyspark.sql.connect.proto.base_pb2_grpc")
    builder = _channel_builder(remote)
    address = f"sc://{builder.endpoint}"
    _check_port(builder, address)
    request = ReleaseSessionRequest(
        session_id=str(uuid.uuid4()), user_context=UserContext(user_id=driver.APP_NAME)
    )
    # Do not apply the back-off of earlier calls.
    builder.setChannelOption("grpc.use_local_subchannel_pool", 1)
    with builder.toChannel() as channel:
        try:
            stub.SparkConnectServiceStub(channel).ReleaseSession(
                request, metadata=builder.metadata(), timeout=driver.CONNECT_TIMEOUT_SECONDS
            )
        except grpc.RpcError as error:
            code = error.code()
            if code.name in {"UNAUTHENTICATED", "PERMISSION_DENIED"}:
                reason = "it refuses the token" if builder.token else "it requires a token"
            else:
                reason = f"it answers {code.name}"
            raise SparkUnavailableError(address, reason) from error


def _check_port(builder: "DefaultChannelBuilder", address: str) -> None:
    host, _, port = builder.endpoint.rpartition(":")
    try:
        place = host.strip("[]"), int(port)
        socket.create_connection(place, timeout=driver.CONNECT_TIMEOUT_SECONDS).close()
    except UnicodeError as error:
        raise InvalidValueError("the Spark Connect address", address, _ADDRESS_FORM) from error
    except OSError as error:
        raise SparkUnavailableError(address, error.strerror or "no answer in time") from error


def _channel_builder(remote: str) -> "DefaultChannelBuilder":
    from pyspark.errors import PySparkValueError
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        builder = DefaultChannelBuilder(remote)
    except (PySparkValueError, ValueError) as error:
        shown = server_address(remote)
        raise InvalidValueError("the Spark Connect address", shown, _ADDRESS_FORM) from error
    if driver.is_loopback(builder.host):  # no proxy reaches it
        builder.setChannelOption("grpc.enable_http_proxy", 0)
    return builder


def _localhost(remote: str) -> str:
    # pyspark sends a token without TLS only to the host name `localhost`.
    for loopback in ("sc://127.0.0.1", "sc://[::1]"):
        if remote.startswith((f"{loopback}:", f"{loopback}/")):
            return remote.replace(loopback, "sc://localhost", 1)
    return remote


class SparkConnectServer:
    """A Spark Connect server below `home`; a context manager, or use `start` and `stop`.

    Runs share it, so that none of them waits for a JVM. It listens on the loopback interface only
    and requires a random token from every client. Its process tree ends with `stop`, and also if
    this process is killed: a guardian process starts the server, and ends it when the pipe to this
    process closes.
    """

    def __init__(
        self,
        home: Path,
        *,
        conf: Mapping[str, str] | None = None,
        packed: Path | None = None,
        log_name: str = "spark-connect.log",
    ) -> None:
        """Configure the server; `conf` adds to the settings.

        Tasks run in the server itself, or on the `spark.master` of `conf`; `packed` is the archive
        of the modules that tasks there import. The log, in the home's folder `logs`, is truncated
        at each start.
        """
        self.log = home.absolute() / "logs" / log_name
        self._home = home.absolute()
        self._packed = packed
        self._conf = {"spark.master": "local[*]"} | dict(conf or {})
        self._token = secrets.token_urlsafe(32)
        self._session_id = str(uuid.uuid4())
        self._port: int | None = None
        self._scratch: Path | None = None
        self._guardian: subprocess.Popen[bytes] | None = None

    def failure(self) -> str | None:
        """Return how its process ended; None while it runs."""
        code = None if self._guardian is None else self._guardian.poll()
        return None if code is None else f"ended with exit code {code}"

    @property
    def remote(self) -> str:
        """The address for clients, with the token and the id of a session that they share.

        The server keeps a thread and a daemon of Python workers for each session, even for a
        released one, so it would grow with every client. Clients that share a session also get warm
        workers. The host is `localhost`, because pyspark sends a token without TLS only to that
        name.
        """
        shared = f"{_SESSION_PARAMETER}={self._session_id}"
        return f"sc://localhost:{self._port}/;token={self._token};{shared}"

    def start(self) -> None:
        """Start the server and wait until it answers; a restarted server keeps its address.

        Raises:
            ConfigurationError: there is no Java, or the archive does not exist or is for another
                Python or release.
            SparkUnavailableError: it ends early or does not answer in time; the error has its last
                log lines.
        """
        self._port = self._port or _free_port()
        try:
            with raise_as(partial(SparkUnavailableError, f"sc://localhost:{self._port}")):
                self._scratch = driver.create_scratch(self._home)
                self._guardian = self._launch(self._scratch, self._port)
            self._wait_until_ready(self._guardian)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and everything that it started, and wait until they have ended."""
        if self._guardian is not None:
            driver.end_process(self._guardian, STOP_TIMEOUT_SECONDS)
        if self._scratch is not None:
            driver.delete_scratch(self._scratch)
        self._guardian = self._scratch = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _launch(self, scratch: Path, port: int) -> "subprocess.Popen[bytes]":
        conf = _fair_conf(self._home) | self._conf
        driver.check_cluster(conf["spark.master"], self._packed)
        conf, environment = driver.driver_settings(self._home, scratch, conf, self._packed)
        # In the environment, not on the command line: other users can read command lines.
        environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = self._token
        conf |= _listen_conf(port)
        command = driver.driver_command(scratch, conf, "--class", _SERVER_CLASS)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        return run_while_parent_lives.start(command, environment, self.log)

    def _wait_until_ready(self, guardian: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            try:
                check(self.remote)
                return
            except SparkUnavailableError as error:
                reason = error.reason
            with suppress(subprocess.TimeoutExpired):
                code = guardian.wait(timeout=0.1)
                reason = f"it ended with exit code {code}"
                break
            if time.monotonic() > deadline:
                break
        lines = driver.last_lines(self.log, start=0)
        address = f"sc://localhost:{self._port}"
        raise SparkUnavailableError(address, f"{reason}; last lines of {self.log}: {lines}")


def _fair_conf(home: Path) -> dict[str, str]:
    """Return the settings that make running jobs share the cores, task by task."""
    pools = write_file(home / "spark" / "pools.xml", _POOLS)
    return {
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": pools.as_uri(),
    }


def _listen_conf(port: int) -> dict[str, str]:
    return {
        "spark.connect.grpc.binding.address": driver.LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.port.maxRetries": "0",  # otherwise it listens on another port without an error
        "spark.connect.session.manager.defaultSessionTimeout": "-1",  # never: it is shared
    }


def _free_port() -> int:
    for port in random.SystemRandom().sample(_PORTS, _PORT_TRIES):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((driver.LOOPBACK, port))
            return port
    raise SparkUnavailableError("localhost", f"no free port from {_PORTS.start} to {_PORTS.stop}")
