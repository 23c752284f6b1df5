"""The S3 client: configured by AWS's own environment variables, created once per process."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from batch_pipeline.storage import s3_client
from batch_pipeline.storage.filesystem import UnreachableError, reason_of
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.store_faults import Faults

WRONG = "AWS's settings are not valid"
CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role"
PROFILE = """
[profile team]
region = eu-north-1
retry_mode = adaptive
max_attempts = 3
"""


def request_error(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str | None]) -> str:
    """Return the reason why a request fails with these environment variables."""
    for name, value in variables.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    s3_client.forget()
    with pytest.raises(UnreachableError) as failed:
        S3.head("s3://bucket/a")
    return reason_of(failed.value)


def test_client_is_created_once(bucket: str) -> None:
    clients = together(*[s3_client.client] * 8)
    assert all(one is clients[0] for one in clients)
    s3_client.forget()
    assert s3_client.client() is not clients[0]


def test_forked_child_creates_its_own_client(bucket: str, faults: Faults) -> None:
    S3.put(f"{bucket}/a", b"hello")
    parents = s3_client.client()
    s3_client._lock.acquire()  # as if a thread was creating a client at that moment
    child = os.fork()
    if child == 0:
        is_own = s3_client.client() is not parents and S3.head(f"{bucket}/a").size_bytes == 5
        os._exit(0 if is_own else 1)
    s3_client._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    assert s3_client.client() is parents
    assert S3.head(f"{bucket}/a").size_bytes == 5


def test_profile_is_used_and_overridden_by_environment(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(PROFILE)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    s3_client.forget()
    config = s3_client.client().meta.config
    assert config.region_name == "eu-north-1"
    assert config.retries == {"mode": "adaptive", "total_max_attempts": 3}
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "5")
    s3_client.forget()
    config = s3_client.client().meta.config
    assert (config.region_name, config.retries["total_max_attempts"]) == ("eu-west-1", 5)


def test_default_number_of_attempts_is_eight(bucket: str) -> None:
    assert s3_client.client().meta.config.retries == {"mode": "standard", "total_max_attempts": 8}


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"AWS_PROFILE": "unknown"}, f"{WRONG}: The config profile (unknown) could not be found"),
        (
            {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
            f"no credentials were found; {CREDENTIALS}",
        ),
        (
            {"AWS_SECRET_ACCESS_KEY": None},
            f"{WRONG}: Partial credentials found in env, missing: AWS_SECRET_ACCESS_KEY",
        ),
        ({"AWS_ENDPOINT_URL": "minio"}, f"{WRONG}: Invalid endpoint: minio"),
        ({"AWS_MAX_ATTEMPTS": "many"}, f"{WRONG}: invalid literal for int() with base 10: 'many'"),
    ],
    ids=["profile", "none", "half", "endpoint", "number"],
)
def test_invalid_settings_are_named(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str | None], reason: str
) -> None:
    assert request_error(monkeypatch, variables) == reason
