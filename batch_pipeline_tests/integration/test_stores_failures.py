"""Stores that refuse, are busy or do not answer: what is repeated, and what is said."""

import socket
from collections.abc import Callable, Iterator

import pytest

from batch_pipeline.stores import s3
from batch_pipeline.stores.facts import look
from batch_pipeline.stores.failures import UnreachableError, reason_of
from batch_pipeline.stores.listing import objects, remove_all, unfinished_uploads
from batch_pipeline.stores.reading import open_uri
from batch_pipeline.stores.upload import ObjectUpload, put, put_new, remove
from batch_pipeline_tests.store_faults import Deed, Fault, Faults

CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role"
Ask = Callable[[str], object]


def listed(uri: str) -> object:
    """List what lies below."""
    return list(objects(uri))


def begun(uri: str) -> None:
    """Begin a large object."""
    ObjectUpload(uri).write(bytes(9 * 2**20))


def put_five(uri: str) -> None:
    """Put a small object."""
    put(uri, b"hello")


def told(ask: Ask, uri: str) -> OSError:
    """Give the error of a request, which names what was asked for."""
    with pytest.raises(OSError, match=r".") as failed:
        ask(uri)
    assert failed.value.filename == uri
    return failed.value


@pytest.fixture
def refused_port() -> Iterator[int]:
    """A port of loopback where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("ask", [put_five, look, open_uri, listed, remove])
def test_busy_store_is_asked_again(bucket: str, faults: Faults, ask: Ask) -> None:
    """Expect two requests that are too many to be repeated until one is answered."""
    put(f"{bucket}/a", b"hello")
    before = len(faults.requests)
    faults.slow_down(times=1)
    faults.slow_down(times=1, status=500, code="InternalError")
    ask(f"{bucket}/a")
    assert len(faults.requests) == before + 3


def test_busy_store_is_asked_as_often_as_told(
    bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect AWS's own variable to lower the number of requests, and words that name it."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    s3.forget()
    faults.slow_down(times=10)
    failed = told(put_five, f"{bucket}/a")
    assert isinstance(failed, UnreachableError)
    assert reason_of(failed) == "the store is busy (SlowDown, after 2 requests)"
    assert faults.count("PUT") == 2


def test_connection_without_answer_is_asked_again(bucket: str, faults: Faults) -> None:
    """Expect requests whose connections end to be repeated."""
    put(f"{bucket}/a", b"hello")
    faults.add(Fault(deed=Deed.LOSE, times=3))
    assert look(f"{bucket}/a").size_bytes == 5


@pytest.mark.parametrize("ask", [put_five, begun, open_uri, listed])
def test_missing_bucket_is_named(bucket: str, ask: Ask) -> None:
    """Expect words that tell a missing bucket from a missing object; none is made."""
    failed = told(ask, f"{bucket}-none/a")
    assert isinstance(failed, FileNotFoundError)
    assert reason_of(failed) == "there is no such bucket"


@pytest.mark.parametrize(
    ("ask", "action"),
    [
        (put_five, "s3:PutObject (AccessDenied)"),
        (begun, "s3:PutObject (AccessDenied)"),
        (listed, "s3:ListBucket (AccessDenied)"),
        (remove, "s3:DeleteObject (AccessDenied)"),
        (lambda uri: list(unfinished_uploads(uri)), "s3:ListBucketMultipartUploads (AccessDenied)"),
        (look, "s3:GetObject (403), also of what is not there where s3:ListBucket is refused"),
        (
            open_uri,
            "s3:GetObject (AccessDenied), also of what is not there where s3:ListBucket is refused",
        ),
    ],
    ids=["put", "upload", "list", "remove", "uploads", "look", "read"],
)
def test_refusal_names_what_has_to_be_allowed(
    bucket: str, faults: Faults, ask: Ask, action: str
) -> None:
    """Expect the action of a policy in the words, and one request."""
    faults.refuse(403, "AccessDenied")
    failed = told(ask, f"{bucket}/a")
    assert isinstance(failed, PermissionError)
    assert reason_of(failed) == f"the store refuses {action}"
    assert len(faults.requests) == 1


def test_refusal_to_remove_one_of_many_says_why(bucket: str, faults: Faults) -> None:
    """Expect an object that could not be removed with others to be told with its reason."""
    faults.refuse(200, "AccessDenied", method="POST", root="DeleteResult", body="<Key>b</Key>")
    faults.refuse(403, "AccessDenied", method="DELETE")
    failed = told(lambda _: remove_all(bucket.removeprefix("s3://"), ["a", "b"]), f"{bucket}/b")
    assert reason_of(failed) == "the store refuses s3:DeleteObject (AccessDenied)"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (400, "ExpiredToken"),
        (400, "InvalidToken"),
    ],
    ids=["key", "secret", "expired", "token"],
)
def test_wrong_credentials_are_the_fault_of_no_object(
    bucket: str, faults: Faults, status: int, code: str
) -> None:
    """Expect an error about the access as a whole, which says where credentials come from."""
    faults.refuse(status, code)
    for ask in (put_five, open_uri, listed):
        failed = told(ask, f"{bucket}/a")
        assert isinstance(failed, UnreachableError)
        assert reason_of(failed) == (
            f"the store does not accept the credentials; {CREDENTIALS} ({code}, after 1 requests)"
        )


def test_refusal_without_words_names_what_it_may_be(bucket: str, faults: Faults) -> None:
    """Expect a HEAD that S3 answers with a bare 400 to be no fault of the object."""
    faults.refuse(400, "ExpiredToken")
    failed = told(look, f"{bucket}/a")
    assert isinstance(failed, UnreachableError)
    assert reason_of(failed) == (
        "the store gives no reason (400): is it another region? have credentials expired?"
    )


def test_clock_that_differs_is_named(bucket: str, faults: Faults) -> None:
    """Expect words about the clock."""
    faults.refuse(403, "RequestTimeTooSkewed")
    failed = told(open_uri, f"{bucket}/a")
    assert isinstance(failed, UnreachableError)
    assert reason_of(failed).startswith(
        "the clock of this machine differs from the store's; set it right"
    )


def test_other_region_is_named(bucket: str, faults: Faults) -> None:
    """Expect the region where the bucket is, and the variable that names it."""
    here = {"x-amz-bucket-region": "eu-central-1"}
    faults.refuse(301, "PermanentRedirect", headers=here)
    for ask in (put_five, open_uri, listed, look):
        failed = told(ask, f"{bucket}/a")
        assert isinstance(failed, UnreachableError)
        assert reason_of(failed) == (
            "the bucket is in the region eu-central-1; set AWS_REGION=eu-central-1"
        )


def test_region_of_the_signature_is_named(bucket: str, faults: Faults) -> None:
    """Expect the region that the store tells in its answer."""
    faults.refuse(
        400, "AuthorizationHeaderMalformed", body="<Region>eu-west-1</Region>", method="PUT"
    )
    failed = told(put_five, f"{bucket}/a")
    assert reason_of(failed) == "the bucket is in the region eu-west-1; set AWS_REGION=eu-west-1"


def test_other_answers_are_told_as_they_are(bucket: str, faults: Faults) -> None:
    """Expect the store's own code and words where we know no better."""
    faults.refuse(400, "EntityTooLarge", method="PUT")
    failed = told(put_five, f"{bucket}/a")
    assert not isinstance(failed, UnreachableError)
    assert reason_of(failed) == "the store answers EntityTooLarge: said by a test"


def test_endpoint_where_nobody_listens_fails_soon(
    bucket: str, refused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the address in the words."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{refused_port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    s3.forget()
    failed = told(look, f"{bucket}/a")
    assert isinstance(failed, UnreachableError)
    assert reason_of(failed).startswith(
        'it does not answer (Could not connect to the endpoint URL: "http://127.0.0.1:'
    )


def test_endpoint_that_says_nothing_is_asked_twice(
    bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect an end after two requests that waited for the whole of their time."""
    monkeypatch.setattr(s3, "ANSWER_SECONDS", 0.2)
    s3.forget()
    faults.add(Fault(deed=Deed.HANG, times=10))
    failed = told(look, f"{bucket}/a")
    assert isinstance(failed, UnreachableError)
    assert reason_of(failed).startswith("it does not answer (Read timeout on endpoint URL")
    assert len(faults.requests) == 2


def test_silence_amid_a_body_is_read_over(
    bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect a reading to be taken up again where the store fell silent once."""
    put(f"{bucket}/a", b"hello")
    monkeypatch.setattr(s3, "ANSWER_SECONDS", 0.2)
    s3.forget()
    faults.add(Fault(deed=Deed.HANG, method="GET"))
    with open_uri(f"{bucket}/a") as file:
        assert file.read() == b"hello"
    assert faults.count("GET") == 2


def test_no_partial_object_is_seen_when_the_store_goes_away(
    bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect nothing to be visible of what could neither be finished nor taken back."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3.forget()
    faults.add(Fault(deed=Deed.DROP, method="PUT", times=100, after_bytes=2**20))
    faults.add(Fault(deed=Deed.DROP, method="DELETE", times=1))
    upload = ObjectUpload(f"{bucket}/large")
    with pytest.raises(UnreachableError):
        upload.write(bytes(40 * 2**20))
    upload.abort()
    assert list(objects(bucket)) == []
    assert [one.key for one in unfinished_uploads(bucket)] == ["large"]


def test_put_new_to_a_store_without_rights_wins_nothing(bucket: str, faults: Faults) -> None:
    """Expect a refusal to be no rival's win."""
    faults.refuse(403, "AccessDenied", method="PUT")
    with pytest.raises(PermissionError):
        put_new(f"{bucket}/pointer", b"mine")
