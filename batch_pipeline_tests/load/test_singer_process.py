"""Redacting secrets and recognizing STATEs in the output of a target."""

import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from batch_pipeline.load.singer_process import MisbehavedError, TargetConfig, read_state

SECRET = 'hunter2 "ü\\ /&'  # noqa: S105 - not a real password
URL = "postgresql://ann:s%2Fcr%C3%A9t@warehouse.example.org/x"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----\n"
DOCUMENT = json.dumps({"type": "x", "private_key": KEY, "scopes": ["https://scope.example.org"]})


def config(**secrets: str) -> TargetConfig:
    """Return a configuration with these secrets."""
    return TargetConfig({}, secrets)


@pytest.mark.parametrize(
    "printed",
    [
        pytest.param(SECRET, id="plain"),
        pytest.param(json.dumps({"password": SECRET}), id="JSON"),
        pytest.param(json.dumps([SECRET], ensure_ascii=False), id="JSON with non-ASCII letters"),
        pytest.param(repr({"password": SECRET}), id="Python"),
        pytest.param(f"https://ann:{quote(SECRET)}@host", id="URL"),
        pytest.param(f"https://ann:{quote(SECRET, safe='')}@host", id="URL without slashes"),
        pytest.param(f"password={quote_plus(SECRET)}", id="form"),
    ],
)
def test_secret_is_redacted_in_every_notation(printed: str) -> None:
    hidden = config(PASSWORD=SECRET).redact(printed)
    assert hidden.count("$PASSWORD") == 1
    assert "hunter2" not in hidden


@pytest.mark.parametrize(
    ("secret", "printed", "expected"),
    [
        pytest.param(URL, "password s/crét", "password $IT", id="password of a URL"),
        pytest.param(URL, "password s%2Fcr%C3%A9t", "password $IT", id="quoted password of a URL"),
        pytest.param(KEY, "key: MIIEvQIBADANBg", "key: $IT", id="line of a key"),
        pytest.param(DOCUMENT, "key: MIIEvQIBADANBg", "key: $IT", id="line in a key file"),
        pytest.param(DOCUMENT, repr({"k": KEY}), "{'k': '$IT'}", id="value in a key file"),
        pytest.param("abc", "abc", "abc", id="too short"),
        pytest.param("{no JSON", "no JSON", "no JSON", id="not a key file"),
    ],
)
def test_part_of_a_secret_is_redacted(secret: str, printed: str, expected: str) -> None:
    assert config(IT=secret).redact(printed) == expected


def test_longer_secret_is_redacted_before_its_substring() -> None:
    assert config(ONE="abcd", TWO="abcd-efgh").redact("abcd-efgh abcd") == "$TWO $ONE"


def test_redacted_json_keeps_its_types() -> None:
    value: Any = {"bookmarks": {"a": 1, "hunter2": ["hunter2", None, 1.5]}}
    hidden = config(WORD="hunter2").redact_json(value)
    assert hidden == {"bookmarks": {"a": 1, "$WORD": ["$WORD", None, 1.5]}}


def test_repr_of_the_configuration_hides_secrets() -> None:
    resolved = TargetConfig.resolve({"password": "$PASSWORD"}, {"PASSWORD": "hunter2"}, "here")
    assert resolved.values == {"password": "hunter2"}
    assert "hunter2" not in repr(resolved)


def test_printed_state_acknowledges_the_sent_state() -> None:
    sent = [{"bookmarks": {"orders": {"publish_number": number}}} for number in (1, 2)]
    assert read_state(json.dumps(sent[0]).encode(), sent) == (0, sent[0])
    message = {"type": "STATE", "value": {"bookmarks": {**sent[1]["bookmarks"], "other": 7}}}
    assert read_state(json.dumps(message).encode(), sent) == (1, message["value"])
    with pytest.raises(MisbehavedError, match="holds no STATE that was sent"):
        read_state(b'{"bookmarks": {"orders": {"publish_number": 3}}}', sent)
