"""Stores that reject requests, are busy or do not answer: retries and messages."""

import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.storage import s3_client
from batch_pipeline.storage.filesystem import UnreachableError, reason_of
from batch_pipeline.storage.s3 import S3, ObjectUpload
from batch_pipeline_tests.store_faults import Deed, Fault, Faults

CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role"
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
    for call in (put_five, S3.head, S3.open, list_all, S3.delete):
        before = len(faults.requests)
        faults.slow_down(times=1)
        faults.slow_down(times=1, status=500, code="InternalError")
        call(f"{bucket}/a")
        assert len(faults.requests) == before + 3, call


def test_missing_bucket_is_reported(bucket: str) -> None:
    for call in (put_five, start_upload, S3.open, list_all):
        error = error_of(call, f"{bucket}-none/a")
        assert isinstance(error, FileNotFoundError)
        assert reason_of(error) == "there is no such bucket"


@pytest.mark.parametrize(
    ("call", "action"),
    [
        (put_five, "s3:PutObject (AccessDenied)"),
        (start_upload, "s3:PutObject (AccessDenied)"),
        (list_all, "s3:ListBucket (AccessDenied)"),
        (S3.delete, "s3:DeleteObject (AccessDenied)"),
        (lambda uri: list(S3.unfinished(uri)), "s3:ListBucketMultipartUploads (AccessDenied)"),
        (lambda uri: S3.create_if_absent(uri, b"mine"), "s3:PutObject (AccessDenied)"),
        (S3.head, f"s3:GetObject (403), {OR_NONE}"),
        (S3.open, f"s3:GetObject (AccessDenied), {OR_NONE}"),
    ],
    ids=["put", "upload", "list", "remove", "uploads", "create", "look", "read"],
)
def test_access_denied_names_the_required_action(
    bucket: str, faults: Faults, call: Call, action: str
) -> None:
    faults.refuse(403, "AccessDenied")
    error = error_of(call, f"{bucket}/a")
    assert isinstance(error, PermissionError)
    assert reason_of(error) == f"the store refuses {action}"
    assert len(faults.requests) == 1


def test_access_denied_for_one_of_many_deletions_is_reported(bucket: str, faults: Faults) -> None:
    faults.refuse(200, "AccessDenied", method="POST", root="DeleteResult", body="<Key>b</Key>")
    faults.refuse(403, "AccessDenied", method="DELETE")
    error = error_of(lambda _: S3.delete(f"{bucket}/a", f"{bucket}/b"), f"{bucket}/b")
    assert reason_of(error) == "the store refuses s3:DeleteObject (AccessDenied)"


WRONG_CREDENTIALS = {
    "InvalidAccessKeyId": 403,
    "SignatureDoesNotMatch": 403,
    "ExpiredToken": 400,
    "InvalidToken": 400,
}


@pytest.mark.parametrize("code", WRONG_CREDENTIALS)
def test_wrong_credentials_are_unreachable_error(bucket: str, faults: Faults, code: str) -> None:
    faults.refuse(WRONG_CREDENTIALS[code], code)
    for call in (put_five, S3.open, list_all):
        error = error_of(call, f"{bucket}/a")
        assert isinstance(error, UnreachableError)
        assert reason_of(error) == (
            f"the store does not accept the credentials; {CREDENTIALS} ({code}, after 1 requests)"
        )


@pytest.mark.parametrize(
    ("answer", "call", "kind", "reason"),
    [
        (
            (403, "RequestTimeTooSkewed"),
            S3.open,
            UnreachableError,
            "the clock of this machine differs from the store's; synchronize it (RequestTimeToo",
        ),
        (
            (400, "ExpiredToken"),
            S3.head,
            UnreachableError,
            "the store gives no reason (400): wrong region or expired credentials?",
        ),
        (
            (400, "EntityTooLarge"),
            put_five,
            OSError,
            "the store answers EntityTooLarge: said by a test",
        ),
        ((403, "InvalidObjectState"), S3.open, PermissionError, "it is archived; restore it first"),
    ],
    ids=["clock", "no words", "others", "archived"],
)
def test_error_response_is_translated(
    bucket: str,
    faults: Faults,
    answer: tuple[int, str],
    call: Call,
    kind: type[OSError],
    reason: str,
) -> None:
    faults.refuse(*answer)
    error = error_of(call, f"{bucket}/a")
    assert type(error) is kind
    assert reason_of(error).startswith(reason)


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
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
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
        ("InvalidIdentityToken", "the store does not accept the credentials; set AWS_"),
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


@pytest.mark.parametrize("call", [list_all, S3.head, S3.open, put_five])
@pytest.mark.parametrize("page", ["<html>hello</html>", ""], ids=["page", "nothing"])
def test_endpoint_that_is_not_s3_is_unreachable_error(
    bucket: str, faults: Faults, call: Call, page: str
) -> None:
    faults.add(Fault(deed=Deed.SAY, times=10, body=page))
    error = error_of(call, f"{bucket}/a")
    assert isinstance(error, UnreachableError)
    assert reason_of(error) == NO_S3


def test_role_endpoint_that_is_not_aws_is_reported(
    bucket: str, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assume_role(tmp_path, monkeypatch)
    faults.add(Fault(deed=Deed.SAY, body="<html><br>"))
    assert reason_of(error_of(S3.head, f"{bucket}/a")) == NO_S3


@pytest.mark.parametrize(
    ("status", "code"), [(403, "InvalidAccessKeyId"), (400, "ExpiredToken"), (400, "InvalidToken")]
)
def test_renewed_credentials_are_read_after_rejection(
    bucket: str,
    faults: Faults,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
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
    faults.refuse(status, code, times=1)
    error_of(list_all, f"{bucket}/")
    assert [_key_of(client()) for client in clients] == ["new", "new"]


def _key_of(client: Any) -> str:
    return str(client._request_signer._credentials.access_key)


@pytest.mark.parametrize("max_attempts", ["2", "5"])
def test_read_timeout_is_retried_once(
    bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch, max_attempts: str
) -> None:
    monkeypatch.setattr(s3_client, "ANSWER_SECONDS", 0.2)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", max_attempts)
    s3_client.forget()
    faults.add(Fault(deed=Deed.HANG, times=10))
    error = error_of(S3.head, f"{bucket}/a")
    assert isinstance(error, UnreachableError)
    assert reason_of(error).startswith("it does not answer (Read timeout on endpoint URL")
    assert len(faults.requests) == 2


@pytest.mark.parametrize(("max_attempts", "requests"), [("1", 1), ("3", 3)])
def test_conditional_request_conflict_is_retried(
    bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch, max_attempts: str, requests: int
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", max_attempts)
    s3_client.forget()
    faults.refuse(409, "ConditionalRequestConflict", method="PUT")
    error = error_of(put_five, f"{bucket}/a")
    assert reason_of(error).startswith("the store is busy (ConditionalRequestConflict")
    assert faults.count("PUT") == requests
