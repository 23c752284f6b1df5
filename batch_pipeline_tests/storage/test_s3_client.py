"""The S3 client: configured by AWS's environment variables, retries, and messages of failures."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.storage import s3_client
from batch_pipeline.storage.filesystem import UnreachableError, reason_of
from batch_pipeline.storage.s3 import S3, ObjectUpload
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.store_faults import Deed, Fault, Faults

WRONG = "AWS's settings are not valid"
CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role"
PROFILE = """
[profile team]
region = eu-north-1
retry_mode = adaptive
max_attempts = 3
"""


def test_client_is_created_once(bucket: str) -> None:
    clients: list[Any] = together(*[s3_client.client] * 8)
    assert all(one is clients[0] for one in clients)
    assert clients[0].meta.config.retries == {"mode": "standard", "total_max_attempts": 8}
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
    for name, value in variables.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    s3_client.forget()
    with pytest.raises(UnreachableError) as failed:
        S3.head("s3://bucket/a")
    assert reason_of(failed.value) == reason


NO_S3 = "the server at this address is not an S3 server; set AWS_ENDPOINT_URL to the address of one"
OR_NONE = "or there is none and s3:ListBucket is refused"
ROLE = """
[profile base]
aws_access_key_id = old
aws_secret_access_key = old
[profile team]
source_profile = base
role_arn = arn:aws:iam::123456789012:role/team
"""
Call = Callable[[str], object]


def list_all(uri: str) -> object:
    return list(S3.list(uri))


def start_upload(uri: str) -> None:
    ObjectUpload(uri).write(bytes(9 * 2**20))


def put_five(uri: str) -> None:
    S3.put(uri, b"hello")


def error_of(call: Call, uri: str) -> OSError:
    """Return the error of a call; it names the URI."""
    with pytest.raises(OSError, match=r".") as error:
        call(uri)
    assert error.value.filename == uri
    return error.value


@pytest.fixture
def refused_port() -> Iterator[int]:
    """A port of loopback without a listener."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


def test_request_to_busy_store_is_retried(bucket: str, faults: Faults) -> None:
    faults.slow_down(times=1)
    faults.slow_down(times=1, status=500, code="InternalError")
    put_five(f"{bucket}/a")
    assert len(faults.requests) == 3


def test_missing_bucket_is_reported(bucket: str) -> None:
    for call in (put_five, start_upload, S3.open, list_all):
        error = error_of(call, f"{bucket}-none/a")
        assert isinstance(error, FileNotFoundError)
        assert reason_of(error) == "there is no such bucket"


ACTIONS: list[tuple[Call, str]] = [
    (put_five, "s3:PutObject (AccessDenied)"),
    (start_upload, "s3:PutObject (AccessDenied)"),
    (list_all, "s3:ListBucket (AccessDenied)"),
    (S3.delete, "s3:DeleteObject (AccessDenied)"),
    (lambda uri: list(S3.unfinished(uri)), "s3:ListBucketMultipartUploads (AccessDenied)"),
    (lambda uri: S3.create_if_absent(uri, b"mine"), "s3:PutObject (AccessDenied)"),
    (S3.head, f"s3:GetObject (403), {OR_NONE}"),
    (S3.open, f"s3:GetObject (AccessDenied), {OR_NONE}"),
]


def test_access_denied_names_the_required_action(bucket: str, faults: Faults) -> None:
    faults.refuse(403, "AccessDenied")
    for call, action in ACTIONS:
        error = error_of(call, f"{bucket}/a")
        assert isinstance(error, PermissionError)
        assert reason_of(error) == f"the store refuses {action}"
    assert len(faults.requests) == len(ACTIONS)


def test_access_denied_for_one_of_many_deletions_is_reported(bucket: str, faults: Faults) -> None:
    faults.refuse(200, "AccessDenied", method="POST", root="DeleteResult", body="<Key>b</Key>")
    faults.refuse(403, "AccessDenied", method="DELETE")
    error = error_of(lambda _: S3.delete(f"{bucket}/a", f"{bucket}/b"), f"{bucket}/b")
    assert reason_of(error) == "the store refuses s3:DeleteObject (AccessDenied)"


REJECTED = f"the store does not accept the credentials; {CREDENTIALS} ({{}}, after 1 requests)"
SKEWED = "the clock of this machine differs from the store's; synchronize it ({}, after 1 requests)"


@pytest.mark.parametrize(
    ("status", "code", "kind", "reason"),
    [
        (403, "InvalidAccessKeyId", UnreachableError, REJECTED),
        (403, "SignatureDoesNotMatch", UnreachableError, REJECTED),
        (400, "ExpiredToken", UnreachableError, REJECTED),
        (400, "InvalidToken", UnreachableError, REJECTED),
        (400, "InvalidIdentityToken", UnreachableError, REJECTED),
        (403, "RequestTimeTooSkewed", UnreachableError, SKEWED),
        (400, "EntityTooLarge", OSError, "the store answers {}: said by a test"),
        (400, "KMS.DisabledException", PermissionError, "the store answers {}: said by a test"),
        (403, "InvalidObjectState", PermissionError, "it is archived; restore it first"),
    ],
)
def test_error_response_is_translated_and_not_retried(
    bucket: str, faults: Faults, status: int, code: str, kind: type[OSError], reason: str
) -> None:
    faults.refuse(status, code)
    error = error_of(S3.open, f"{bucket}/a")
    assert type(error) is kind
    assert reason_of(error) == reason.format(code)
    assert len(faults.requests) == 1


def test_error_response_to_head_has_only_a_status(bucket: str, faults: Faults) -> None:
    faults.refuse(400, "ExpiredToken")
    error = error_of(S3.head, f"{bucket}/a")
    assert isinstance(error, UnreachableError)
    text = "the store gives no reason (400): wrong region or expired credentials?"
    assert reason_of(error).startswith(text)


def test_wrong_region_is_named(bucket: str, faults: Faults) -> None:
    """Both in the response to a signature and in a redirect."""
    signed_for = {"code": "AuthorizationHeaderMalformed", "body": "<Region>eu-west-1</Region>"}
    faults.refuse(400, **signed_for, target="/signed")
    redirect = {"x-amz-bucket-region": "eu-west-1"}
    faults.refuse(301, "PermanentRedirect", headers=redirect, target="/a")
    faults.refuse(301, "PermanentRedirect", headers=redirect, target="list-type=2")
    calls = (put_five, S3.open, list_all, S3.head)
    for call, key in [(put_five, "signed"), *((call, "a") for call in calls)]:
        error = error_of(call, f"{bucket}/{key}")
        assert isinstance(error, UnreachableError)
        assert reason_of(error) == "the bucket is in the region eu-west-1; set AWS_REGION=eu-west-1"


def test_endpoint_without_listener_is_unreachable(
    bucket: str, refused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{refused_port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3_client.forget()
    error = error_of(S3.head, f"{bucket}/a")
    assert isinstance(error, UnreachableError)
    assert reason_of(error).startswith(
        'it does not answer (Could not connect to the endpoint URL: "http://127.0.0.1:'
    )


def test_read_timeout_within_body_is_retried(
    bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    S3.put(f"{bucket}/a", b"hello")
    monkeypatch.setattr(s3_client, "ANSWER_SECONDS", 0.2)
    s3_client.forget()
    faults.add(Fault(deed=Deed.HANG, method="GET"))
    with S3.open(f"{bucket}/a") as file:
        assert file.read() == b"hello"
    assert faults.count("GET") == 2


def test_failed_upload_leaves_no_partial_object(
    bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3_client.forget()
    faults.add(Fault(deed=Deed.DROP, method="PUT", times=100, after_bytes=2**20))
    faults.add(Fault(deed=Deed.DROP, method="DELETE", times=1))
    upload = ObjectUpload(f"{bucket}/large")
    with pytest.raises(UnreachableError):
        upload.write(bytes(40 * 2**20))
    upload.abort()
    assert list(S3.list(bucket)) == []
    assert [one.name for one in S3.unfinished(bucket)] == ["large"]


def assume_role(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the credentials of a role, which are requested first."""
    (folder / "config").write_text(ROLE)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    s3_client.forget()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("ThrottlingException", "the store is busy (ThrottlingException, after "),
        ("RequestThrottled", "the store is busy (RequestThrottled, after "),
        ("ExpiredTokenException", "the store does not accept the credentials; set AWS_"),
        (
            "AccessDenied",
            "AWS returns no credentials: it answers AssumeRole by AccessDenied: said by",
        ),
    ],
)
def test_role_errors_are_unreachable_error(
    bucket: str,
    faults: Faults,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    reason: str,
) -> None:
    assume_role(tmp_path, monkeypatch)
    faults.refuse(400, code, root="ErrorResponse")
    error = error_of(S3.head, f"{bucket}/a")
    assert isinstance(error, UnreachableError)
    assert reason_of(error).startswith(reason)


@pytest.mark.parametrize("page", ["<html>hello</html>", ""], ids=["page", "nothing"])
def test_endpoint_that_is_not_s3_is_unreachable_error(
    bucket: str, faults: Faults, page: str
) -> None:
    faults.add(Fault(deed=Deed.SAY, times=100, body=page))
    for call in (list_all, S3.head, S3.open, put_five):
        error = error_of(call, f"{bucket}/a")
        assert isinstance(error, UnreachableError)
        assert reason_of(error) == NO_S3


def test_role_endpoint_that_is_not_aws_is_reported(
    bucket: str, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assume_role(tmp_path, monkeypatch)
    faults.add(Fault(deed=Deed.SAY, body="<html><br>"))
    assert reason_of(error_of(S3.head, f"{bucket}/a")) == NO_S3


def test_renewed_credentials_are_read_after_rejection(
    bucket: str, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    path.write_text("[default]\naws_access_key_id = old\naws_secret_access_key = old\n")
    s3_client.forget()
    clients: list[Callable[[], Any]] = [
        s3_client.client,
        partial(s3_client.client, "sqs", "eu-west-1"),
    ]
    assert [_key_of(client()) for client in clients] == ["old", "old"]
    path.write_text("[default]\naws_access_key_id = new\naws_secret_access_key = new\n")
    assert clients[1]() is clients[1]()
    faults.refuse(400, "ExpiredToken", times=1)
    error_of(list_all, f"{bucket}/")
    assert [_key_of(client()) for client in clients] == ["new", "new"]


def _key_of(client: Any) -> str:
    return str(client._request_signer._credentials.access_key)


def test_read_timeout_is_retried_once(
    bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "ANSWER_SECONDS", 0.2)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "5")
    s3_client.forget()
    faults.add(Fault(deed=Deed.HANG, times=10))
    error = error_of(S3.head, f"{bucket}/a")
    assert isinstance(error, UnreachableError)
    assert reason_of(error).startswith("it does not answer (Read timeout on endpoint URL")
    assert len(faults.requests) == 2


def test_conditional_request_conflict_is_retried(
    bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    s3_client.forget()
    faults.refuse(409, "ConditionalRequestConflict", method="PUT")
    error = error_of(put_five, f"{bucket}/a")
    assert reason_of(error).startswith("the store is busy (ConditionalRequestConflict")
    assert faults.count("PUT") == 3
