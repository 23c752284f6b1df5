"""The S3 client of this process, configured by AWS's own environment: keys, profile, region,
endpoint (`AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`), `AWS_MAX_ATTEMPTS`, `AWS_RETRY_MODE`.

One client serves all threads; a fork makes its own. boto3 is imported on first use, which takes
half a second.
"""

import os
import threading
from typing import Any

ATTEMPTS = 8  # of one request: the waits between them are up to 20 s in all

_lock = threading.Lock()
_clients: dict[int, Any] = {}


def client() -> Any:
    """Give the client; nothing is asked of the store yet.

    Raises:
        UnreachableError: the configuration names a profile that is not there, or makes no sense.
    """
    made = _clients.get(os.getpid())
    if made is not None:
        return made
    with _lock:
        if os.getpid() not in _clients:
            from batch_pipeline.stores.failures import told

            with told("s3://"):
                made = _made()
            _clients.clear()
            _clients[os.getpid()] = made
        return _clients[os.getpid()]


def forget() -> None:
    """Let the next use read the environment again."""
    with _lock:
        _clients.clear()


def _made() -> Any:
    import boto3
    from botocore.config import Config

    given = os.environ
    retries: dict[str, Any] = {}
    if "AWS_MAX_ATTEMPTS" not in given:
        retries["total_max_attempts"] = ATTEMPTS
    if "AWS_RETRY_MODE" not in given:
        retries["mode"] = "standard"
    config = Config(
        retries=retries,
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=32,
        # What is written has its SHA-256, what is read is checked against it; a second checksum
        # costs time and is unknown to some stores.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="batch-pipeline",
    )
    region = given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION")
    return boto3.session.Session(region_name=region).client("s3", config=config)
