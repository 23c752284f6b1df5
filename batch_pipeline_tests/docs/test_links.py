"""Links of the README and of all pages lead somewhere; nothing is fetched to see it."""

import re
from urllib.parse import unquote, urlsplit

from batch_pipeline_tests.docs.pages import Found, anchors, links

_HOST = re.compile(r"([a-z0-9-]+\.)+[a-z]{2,}")


def test_links_to_files_lead_to_a_file_and_a_heading() -> None:
    """Expect each relative link to name what is there, and each anchor a heading of that page."""
    inner = [link for link in links() if not urlsplit(link.text).scheme]
    assert len(inner) > 100
    assert [str(link) for link in inner if not _is_there(link)] == []


def test_links_to_the_web_are_well_formed() -> None:
    """Expect https, the name of a host, and nothing that belongs to the sentence around."""
    outer = [link for link in links() if urlsplit(link.text).scheme]
    assert len(outer) > 10
    assert [str(link) for link in outer if not _is_well_formed(link.text)] == []


def _is_there(link: Found) -> bool:
    path, _, anchor = link.text.partition("#")
    place = (link.page.parent / unquote(path)).resolve() if path else link.page
    return place.exists() and (not anchor or anchor in anchors(place))


def _is_well_formed(text: str) -> bool:
    parts = urlsplit(text)
    is_clean = re.search(r"[\s<>\"'`]|[.,;:]$", text) is None
    return parts.scheme == "https" and bool(_HOST.fullmatch(parts.hostname or "")) and is_clean
