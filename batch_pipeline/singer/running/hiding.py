"""Secrets in the words of programs: the forms in which these print them. Pure values only."""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

_SHORTEST_SECRET = 4  # shorter ones would take half of every sentence away
_SHORTEST_PIECE = 8  # of a secret of several lines, or of a JSON document


def hidden_forms(secrets: Mapping[str, str]) -> list[tuple[str, str]]:
    """Give each form of each secret with the `$NAME` to write in its place, the longest first."""
    forms = {
        form: f"${name}"
        for name, secret in secrets.items()
        for piece in (secret, *_pieces(secret))
        for form in _written(piece)
        if len(form) >= _SHORTEST_SECRET
    }
    return sorted(forms.items(), key=lambda one: -len(one[0]))


def _pieces(secret: str) -> Iterator[str]:
    """Give what a program that knows the secret may print of it: a password of a URL, a line."""
    try:
        password = urlsplit(secret).password
    except ValueError:
        password = None
    if password:
        yield from {password, unquote(password)}
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line for line in map(str.strip, lines) if len(line) >= _SHORTEST_PIECE)
    if secret.lstrip().startswith("{"):
        yield from _texts_of_document(secret)


def _texts_of_document(secret: str) -> Iterator[str]:
    """Give the texts in a key file, of which many are JSON, and their lines."""
    try:
        document = json.loads(secret)
    except (ValueError, RecursionError):
        return
    for text in _texts(document):
        for piece in (text, *text.splitlines()):
            if len(piece) >= _SHORTEST_PIECE:
                yield piece


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _written(secret: str) -> set[str]:
    """Give a text as it is, in JSON, in Python, and in a URL."""
    return {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
    }
