"""The S3 server of the tests: moto on loopback, or a real one.

`BATCH_PIPELINE_TEST_S3_ENDPOINT` sets the endpoint of a real server; AWS's variables hold its keys.
Queues always use moto. The product is not patched: it sends HTTP to another process.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
from botocore.config import Config

ENDPOINT = "BATCH_PIPELINE_TEST_S3_ENDPOINT"
_MOTO = Path(__file__).with_name("moto_server.py")
_REGION = "us-east-1"
_START_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A server, and the environment variables that make programs use the server."""

    endpoint: str
    access_key: str
    secret_key: str
    queues: str  # the endpoint of SQS

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables of AWS. They also disable the user's configuration files."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_SQS": self.queues,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": _REGION,
            "AWS_DEFAULT_REGION": _REGION,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str = "s3") -> Any:
        """Return a client for use in tests."""
        endpoint = self.queues if service == "sqs" else self.endpoint
        return _client(service, endpoint, self.access_key, self.secret_key)

    def new_bucket(self) -> str:
        """Create a unique bucket, and return its name."""
        name = f"bp-{uuid4().hex[:16]}"
        self.client().create_bucket(Bucket=name)
        return name


@cache
def _client(service: str, endpoint: str, access_key: str, secret_key: str) -> Any:
    return boto3.session.Session().client(
        service,
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name=_REGION,
        config=Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


@contextmanager
def open_store() -> Iterator[ObjectStore]:
    """Start moto's server, or use the configured one."""
    named = os.environ.get(ENDPOINT)
    with moto() as endpoint:
        if named:
            key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
            yield ObjectStore(named, key, secret, endpoint)
        else:
            yield ObjectStore(endpoint, "testing", "testing", endpoint)


@contextmanager
def moto(**environment: str) -> Iterator[str]:
    """Start moto's server on a free port, yield its URL, and stop it at the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-P", str(_MOTO), "-H", "127.0.0.1", "-p", str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdout=quiet, stderr=quiet, env=os.environ | environment
    ) as server:
        try:
            _wait_for(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert server.poll() is None, "the S3 server has ended"
            assert time.monotonic() < deadline, "the S3 server does not respond"
            time.sleep(0.05)
        else:
            return
