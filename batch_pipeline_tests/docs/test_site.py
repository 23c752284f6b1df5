"""The pages make a site, by the command of the page on development."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import batch_pipeline
from batch_pipeline_tests.docs.pages import DOCS, PROJECT

COMMAND = "uv run sphinx-build -W --keep-going batch_pipeline/docs site"


class Fetched(HTMLParser):
    """Collects what a browser fetches to show a page: scripts, styles and pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self._is_in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the addresses of one element."""
        given = dict(attrs)
        shown = "stylesheet" in (given.get("rel") or "") or tag != "link"
        names = ("src", "data", "href") if tag == "link" else ("src", "data")
        self.addresses += [str(given[name]) for name in names if shown and given.get(name)]
        self._is_in_script = tag == "script"

    def handle_data(self, data: str) -> None:
        """Take the addresses within a script."""
        if self._is_in_script:
            self.addresses += re.findall(r"https?://[^\s\"'`]+", data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of Sphinx is an error."""
    assert f"`{COMMAND}`" in " ".join((DOCS / "develop.md").read_text(encoding="utf-8").split())
    folder = tmp_path_factory.mktemp("site")
    options = COMMAND.split("sphinx-build ")[1].split()[:-1]
    command = [sys.executable, "-m", "sphinx", "-q", *options, str(folder)]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_site_has_every_page(site: Path) -> None:
    """Expect an HTML file for each page, and each public name in an entry or a table of the API."""
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]
    assert len(pages) > 40
    assert [str(page) for page in pages if not (site / page).is_file()] == []
    api = (site / "reference/api.html").read_text(encoding="utf-8")
    shown = re.findall(
        r'id="batch_pipeline\.(\w+)"|<tr[^>]*>\s*<td>.*?<span class="pre">(\w+)<', api
    )
    assert set(batch_pipeline.__all__) - {name for pair in shown for name in pair} == set()
    assert ">Type<" not in api  # a property's sentence whose colon was taken for that of a type


def test_site_is_read_without_a_network(site: Path) -> None:
    """Expect scripts, styles and pictures of all pages to lie in the site itself."""
    for page in site.rglob("*.html"):
        parser = Fetched()
        parser.feed(page.read_text(encoding="utf-8"))
        files = [re.sub(r"[?#].*", "", address) for address in parser.addresses]
        assert [one for one in files if not (page.parent / one).is_file()] == [], str(page)
