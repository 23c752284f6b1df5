"""Texts that mean something to a database, a shell, a template, a terminal, a page or a path.

All of them are plain data here; each test uses them as a name or as a value.
"""

import json
from itertools import chain
from pathlib import Path

_FILE = Path(__file__).with_name("hostile_texts.json")
_LONG = ("a" * 64, "a" * 100, "a" * 101, "a" * 5_000, "'" * 5_000, "é" * 40, "../" * 500, "%s" * 99)
TEXTS: tuple[str, ...] = (*chain(*json.loads(_FILE.read_bytes()).values()), *_LONG)


def is_text(text: str) -> bool:
    """Return whether databases accept a text: valid UTF-8 without NUL."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
