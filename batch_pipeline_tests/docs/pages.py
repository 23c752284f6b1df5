"""The pages of the project as their readers meet them: headings, links, blocks, code in lines."""

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
class Found:
    """Something on a page: a link's target, code within a line, or a block and its language."""

    page: Path
    line: int
    text: str
    language: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(PROJECT)}:{self.line}: {self.text}"


def links() -> Iterator[Found]:
    """Give the targets of all links and pictures."""
    for page, line, token in _in_lines():
        target = token.attrGet("href") or token.attrGet("src")
        if target is not None:
            yield Found(page, line, str(target))


def code_in_lines() -> Iterator[Found]:
    """Give what stands between single back quotes."""
    for page, line, token in _in_lines():
        if token.type == "code_inline":
            yield Found(page, line, token.content)


def blocks(*languages: str) -> Iterator[Found]:
    """Give the blocks of some languages; "" are those that name none."""
    for page in PAGES:
        for token in _tokens(page):
            language = token.info.strip()
            if token.type == "fence" and language in languages:
                yield Found(page, _line(token), token.content, language)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Give the names that GitHub and the site give to the headings of a page."""
    tokens = _tokens(page)
    names = [
        _anchor("".join(one.content for one in inline.children or ()))
        for heading, inline in pairwise(tokens)
        if heading.type == "heading_open"
    ]
    again = [f"{name}-{n}" for name, count in Counter(names).items() for n in range(1, count)]
    return frozenset([*names, *again])


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def _tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def _in_lines() -> Iterator[tuple[Path, int, Token]]:
    for page in PAGES:
        for outer in _tokens(page):
            for token in outer.children or ():
                yield page, _line(outer), token


def _line(token: Token) -> int:
    return 1 if token.map is None else token.map[0] + 1
