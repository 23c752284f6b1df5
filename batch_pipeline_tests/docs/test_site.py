"""The documentation site, built by the command of the development page."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

import batch_pipeline
from batch_pipeline_tests.acceptance.dagster_pages import ARGUMENTS, CHROMIUM
from batch_pipeline_tests.acceptance.sandbox import program_output
from batch_pipeline_tests.docs.pages import DOCS, PROJECT

pytestmark = pytest.mark.long

COMMAND = "uv run sphinx-build -W --keep-going batch_pipeline/docs site"


class ResourceParser(HTMLParser):
    """Collects the addresses of scripts, styles and images of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self._is_in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the addresses of an element."""
        attributes = dict(attrs)
        is_fetched = "stylesheet" in (attributes.get("rel") or "") or tag != "link"
        names = ("src", "data", "href") if tag == "link" else ("src", "data")
        self.addresses += [
            str(attributes[name]) for name in names if is_fetched and attributes.get(name)
        ]
        self._is_in_script = tag == "script"

    def handle_data(self, data: str) -> None:
        """Collect the addresses in a script."""
        if self._is_in_script:
            self.addresses += re.findall(r"https?://[^\s\"'`]+", data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of Sphinx is an error."""
    assert f"`{COMMAND}`" in " ".join((DOCS / "develop.md").read_text(encoding="utf-8").split())
    folder = tmp_path_factory.mktemp("site")
    options = COMMAND.split("sphinx-build ")[1].split()[:-1]
    command = [sys.executable, "-m", "sphinx", "-q", *options, str(folder)]
    program_output(*command, cwd=PROJECT)
    return folder


def test_site_has_every_page_and_public_name(site: Path) -> None:
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]
    assert len(pages) > 40
    assert [str(page) for page in pages if not (site / page).is_file()] == []
    api = (site / "reference/api.html").read_text(encoding="utf-8")
    documented = re.findall(
        r'id="batch_pipeline\.(\w+)"|<tr[^>]*>\s*<td>.*?<span class="pre">(\w+)<', api
    )
    assert set(batch_pipeline.__all__) - {name for pair in documented for name in pair} == set()
    assert ">Type<" not in api  # a property's docstring, parsed as a type because of its colon


def test_site_fetches_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        parser = ResourceParser()
        parser.feed(page.read_text(encoding="utf-8"))
        files = [re.sub(r"[?#].*", "", address) for address in parser.addresses]
        assert [file for file in files if not (page.parent / file).is_file()] == [], str(page)


FIRST_RESULTS = {
    "downstream": "how_to/read_batches.html",
    "read a batch": "how_to/read_batches.html",
    "exactly once": "explanation/guarantees.html",
    "backfill": "how_to/reprocess_history.html",
    "late files": "reference/meta_tables.html#late-files",
    "acquire_batch": "reference/api.html#batch_pipeline.acquire_batch",
}


def test_search_finds_the_page_that_answers_first(site: Path) -> None:
    assert CHROMIUM, "no chromium: `apt-get install chromium`"
    results = "#search-results ul.search li > a"
    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page()
        for query in FIRST_RESULTS:
            page.goto(f"{(site / 'search.html').as_uri()}?q={query.replace(' ', '+')}")
            page.get_by_text("Search finished").wait_for()
            links = [str(link.get_attribute("href")) for link in page.locator(results).all()]
            found[query] = re.sub(r"\?highlight=[^#]*", "", links[0])
            assert not [link for link in links if link.startswith(("decisions", "changelog"))]
        browser.close()
    assert found == FIRST_RESULTS
