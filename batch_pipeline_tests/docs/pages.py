"""The parsed pages of the project: headings, links, blocks and inline code."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "batch_pipeline/docs"
PAGES = (PROJECT / "README.md", *sorted(DOCS.rglob("*.md")))


@dataclass(frozen=True, slots=True)
class PageText:
    """The target of a link, inline code, or a block with its language, and its position."""

    page: Path
    line: int
    text: str
    language: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(PROJECT)}:{self.line}: {self.text}"


def links() -> Iterator[PageText]:
    """Yield the targets of all links and images."""
    for page, line, token in _inline_tokens():
        target = token.attrGet("href") or token.attrGet("src")
        if target is not None:
            yield PageText(page, line, str(target))


def inline_code() -> Iterator[PageText]:
    """Yield the inline code of all pages."""
    for page, line, token in _inline_tokens():
        if token.type == "code_inline":
            yield PageText(page, line, token.content)


def blocks(*languages: str) -> Iterator[PageText]:
    """Yield the blocks of some languages; "" is for blocks without a language."""
    for page in PAGES:
        for token in _tokens(page):
            language = token.info.strip()
            if token.type == "fence" and language in languages:
                yield PageText(page, _line(token), token.content, language)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub and the site generate for the headings of a page."""
    tokens = _tokens(page)
    names = [
        _anchor("".join(child.content for child in inline.children or ()))
        for heading, inline in pairwise(tokens)
        if heading.type == "heading_open"
    ]
    repeated = [f"{name}-{n}" for name, count in Counter(names).items() for n in range(1, count)]
    return frozenset([*names, *repeated])


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def _tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def _inline_tokens() -> Iterator[tuple[Path, int, Token]]:
    for page in PAGES:
        for outer in _tokens(page):
            for token in outer.children or ():
                yield page, _line(outer), token


def _line(token: Token) -> int:
    return 1 if token.map is None else token.map[0] + 1
