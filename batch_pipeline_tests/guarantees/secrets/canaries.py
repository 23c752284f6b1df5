"""Canaries: words that stand for secrets, and how they are found again in whatever form.

Nothing of the product is known here.
"""

import base64
import gzip
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from urllib.parse import quote

NAMES = (
    "inventory password",
    "password of the meta tables",
    "password of a named database",
    "password of a table's database",
    "password of a target",
    "password of a failing target",
    "key file of a target",
    "token of Spark Connect",
    "password in a dot-env file",
    "secret key of AWS",
    "session token of AWS",
    "password in an endpoint",
    "password in a stream file",
    "password in the URL of a queue",
    "password of Dagster's storage",
)


@dataclass(frozen=True, slots=True)
class Canaries:
    """A word for each name; no other text in the world has it."""

    words: Mapping[str, str]

    @classmethod
    def hatched(cls) -> "Canaries":
        """Make new ones. The characters after the word are those that are written otherwise."""
        return cls({name: f"canary{token_hex(12)}" for name in NAMES})

    def __getitem__(self, name: str) -> str:
        return self.words[name]

    def also(self, name: str, word: str) -> "Canaries":
        """Return these and a secret that the product made."""
        return Canaries({**self.words, name: word})

    def found_in(self, content: bytes) -> set[str]:
        """Return the names of those that are in some bytes, as they are, packed, or in Base64."""
        return {name for some in _unpacked(content) for name in self._plainly(some)}

    def _plainly(self, content: bytes) -> Iterator[str]:
        for name, word in self.words.items():
            if any(form in content for form in _forms(word.encode())):
                yield name


def _forms(word: bytes) -> set[bytes]:
    """Return what a word looks like, wherever it begins in a text that is written in Base64."""
    forms = {word, quote(word.decode(), safe="").encode(), word.hex().encode()}
    for before in range(3):
        coded = base64.b64encode(bytes(before) + word).rstrip(b"=")
        whole = coded[(before * 8 + 5) // 6 : -1]
        forms |= {whole, whole.replace(b"+", b"-").replace(b"/", b"_")}
    return forms


def _unpacked(content: bytes) -> Iterator[bytes]:
    yield content
    if content[:2] == b"\x1f\x8b":
        with suppress(OSError, EOFError, zlib.error):
            yield gzip.decompress(content)
    elif content[:1] == b"\x78":
        with suppress(zlib.error):
            yield zlib.decompress(content)
