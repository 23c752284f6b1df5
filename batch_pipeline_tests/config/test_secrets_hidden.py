"""What values that hold a secret show of themselves, and what errors about them say."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError

from batch_pipeline.app import Pipeline
from batch_pipeline.defs.instance.servers import GuardedServer
from batch_pipeline.defs.s3_resource import StoreResource
from batch_pipeline.load.postgres import PostgresLoader
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.load import PostgresTarget
from batch_pipeline.singer.target.config import CONFIG_SCHEMA, read_config
from batch_pipeline.spark.session import SparkSettings
from batch_pipeline.storage.filesystem import UnreachableError
from batch_pipeline.storage.s3_client import new_client, translate_store_errors, without_user

WORD = "hunter2"
ENVIRONMENT = {
    "BATCH_PIPELINE_INVENTORY_CONN": f"postgresql://ann:{WORD}@localhost/x",
    "BATCH_PIPELINE_SPARK_REMOTE": f"sc://localhost:15002/;token={WORD}",
    "AWS_SECRET_ACCESS_KEY": WORD,
}
HOLDERS: dict[str, Callable[[], object]] = {
    "pipeline": lambda: Pipeline.from_environment(ENVIRONMENT),
    "server": lambda: GuardedServer(
        name="x", command=["true"], environment=ENVIRONMENT, log=Path("log")
    ),
    "settings of Spark": lambda: SparkSettings(home=Path("home"), remote=f"sc://x/;token={WORD}"),
    "target": lambda: read_config({"inventory_conn": WORD}, CONFIG_SCHEMA["properties"]),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_value_that_holds_a_secret_does_not_show_it(holder: str) -> None:
    """Expect it not in the text that logs and tracebacks make of the value."""
    assert WORD not in repr(HOLDERS[holder]())


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:se/{WORD}@localhost:5432/x",
        f"postgresql://ann:se@{WORD}@localhost/x",
        f"mysql://ann:{WORD}@localhost/x",
    ],
)
def test_url_of_a_target_with_an_unescaped_password_is_refused_unseen(url: str) -> None:
    """Expect no part of the password to be taken for a host or a database, and shown as one."""
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE", table="orders")
    with pytest.raises(InvalidValueError) as caught:
        PostgresLoader(target, url)
    assert WORD not in str(caught.value)


def test_mistyped_key_of_the_target_does_not_show_its_text() -> None:
    """Expect the key that was meant, since its value may be a password."""
    with pytest.raises(InvalidValueError) as caught:
        read_config({"inventory_con": WORD}, CONFIG_SCHEMA["properties"])
    assert "did you mean inventory_conn?" in str(caught.value)
    assert WORD not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f'connect to "http://ann:{WORD}@host:9/b?x=1"', 'connect to "http://host:9/b?x=1"'),
        (f"http://ann:p@{WORD}@host", "http://host"),
        (f"Invalid endpoint: ann:{WORD}@host:9", "Invalid endpoint: host:9"),
        ("http://host/path and ann@example.org", "http://host/path and ann@example.org"),
    ],
)
def test_user_of_an_endpoint_is_taken_out_of_reasons(text: str, left: str) -> None:
    """Expect the host to stay, and addresses of people too."""
    assert without_user(text) == left


def test_endpoint_with_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect neither Dagster's resource nor an error about the endpoint to hold it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://ann:{WORD}@localhost:9")
    assert StoreResource.of_environment().endpoint_url is None
    with pytest.raises(UnreachableError) as caught:
        new_client(region="us-east-1", endpoint=f"http//ann:{WORD}@localhost")
    assert WORD not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(UnreachableError) as caught, translate_store_errors("s3://bucket"):
        raise EndpointConnectionError(endpoint_url=f"http://ann:{WORD}@localhost:9/bucket")
    assert "http://localhost:9/bucket" in str(caught.value)
    assert WORD not in "".join(traceback.format_exception(caught.value))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9")
    assert StoreResource.of_environment().endpoint_url == "http://localhost:9"
