"""Secrets do not appear in the text of values and errors."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.instance.servers import GuardedServer, stop
from batch_pipeline.defs.s3_resource import StoreResource
from batch_pipeline.singer.target.config import CONFIG_SCHEMA, read_config
from batch_pipeline.spark.session import SparkSettings
from batch_pipeline.storage.filesystem import UnreachableError
from batch_pipeline.storage.s3_client import new_client, translate_store_errors, without_user

SENSITIVE = "hunter2"
ENVIRONMENT = {
    "BATCH_PIPELINE_INVENTORY_CONN": f"postgresql://ann:{SENSITIVE}@localhost/x",
    "BATCH_PIPELINE_SPARK_REMOTE": f"sc://localhost:15002/;token={SENSITIVE}",
    "AWS_SECRET_ACCESS_KEY": SENSITIVE,
}


def _stopped_server() -> GuardedServer:
    server = GuardedServer.start("x", ["true"], ENVIRONMENT, Path(os.devnull))
    stop([server])
    return server


HOLDERS: dict[str, Callable[[], object]] = {
    "pipeline": lambda: Pipeline.from_environment(ENVIRONMENT),
    "server": _stopped_server,
    "Spark settings": lambda: SparkSettings(home=Path("home"), remote=f"sc://x/;token={SENSITIVE}"),
    "target": lambda: read_config({"inventory_conn": SENSITIVE}, CONFIG_SCHEMA["properties"]),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_repr_hides_secrets(holder: str) -> None:
    assert SENSITIVE not in repr(HOLDERS[holder]())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'connect to "http://ann:{SENSITIVE}@host:9/b?x=1"', 'connect to "http://host:9/b?x=1"'),
        (f"http://ann:p@{SENSITIVE}@host", "http://host"),
        (f"Invalid endpoint: ann:{SENSITIVE}@host:9", "Invalid endpoint: host:9"),
        ("http://host/path and ann@example.org", "http://host/path and ann@example.org"),
    ],
)
def test_user_is_removed_from_endpoint(text: str, expected: str) -> None:
    """The host and e-mail addresses stay."""
    assert without_user(text) == expected


def test_endpoint_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither Dagster's resource nor an error about the endpoint contains it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://ann:{SENSITIVE}@localhost:9")
    assert StoreResource.of_environment().endpoint_url is None
    with pytest.raises(UnreachableError) as caught:
        new_client(region="us-east-1", endpoint=f"http//ann:{SENSITIVE}@localhost")
    assert SENSITIVE not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(UnreachableError) as caught, translate_store_errors("s3://bucket"):
        raise EndpointConnectionError(endpoint_url=f"http://ann:{SENSITIVE}@localhost:9/bucket")
    assert "http://localhost:9/bucket" in str(caught.value)
    assert SENSITIVE not in "".join(traceback.format_exception(caught.value))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9")
    assert StoreResource.of_environment().endpoint_url == "http://localhost:9"
