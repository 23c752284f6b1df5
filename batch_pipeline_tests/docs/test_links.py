"""Links of the README and of all pages are valid; nothing is fetched."""

import re
from urllib.parse import unquote, urlsplit

from batch_pipeline_tests.docs.pages import PageText, anchors, links

_HOST = re.compile(r"([a-z0-9-]+\.)+[a-z]{2,}")


def test_relative_links_lead_to_existing_files_and_headings() -> None:
    inner = [link for link in links() if not urlsplit(link.text).scheme]
    assert len(inner) > 100
    assert [str(link) for link in inner if not _is_there(link)] == []


def test_web_links_are_well_formed_https() -> None:
    outer = [link for link in links() if urlsplit(link.text).scheme]
    assert len(outer) > 10
    assert [str(link) for link in outer if not _is_well_formed(link.text)] == []


def _is_there(link: PageText) -> bool:
    path, _, anchor = link.text.partition("#")
    place = (link.page.parent / unquote(path)).resolve() if path else link.page
    return place.exists() and (not anchor or anchor in anchors(place))


def _is_well_formed(text: str) -> bool:
    parts = urlsplit(text)
    is_clean = re.search(r"[\s<>\"'`]|[.,;:]$", text) is None
    return parts.scheme == "https" and bool(_HOST.fullmatch(parts.hostname or "")) and is_clean
