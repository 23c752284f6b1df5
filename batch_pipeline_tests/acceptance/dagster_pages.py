"""Dagster's pages in a headless Chromium, located by their visible text."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
_LONGEST_MILLISECONDS = 180_000
_QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", *_QUIET]


@dataclass(frozen=True, slots=True, kw_only=True)
class DagsterPages:
    """A browser tab on the server at a port; screenshots are saved in a folder."""

    page: Page
    port: int
    screenshots: Path

    def open(self, path: str) -> None:
        """Open a page by its path."""
        self.page.goto(f"http://127.0.0.1:{self.port}/{path}")

    def see(self, words: str, *, screenshot: str | None = None) -> None:
        """Wait until a text is visible on the page, and optionally save a screenshot."""
        element = self.page.get_by_text(words, exact=True).first
        expect(element).to_be_visible(timeout=_LONGEST_MILLISECONDS)
        if screenshot is not None:
            self.page.screenshot(path=self.screenshots / f"{screenshot}.png")

    def click(self, words: str) -> None:
        """Click the button of the page that contains a text."""
        self.page.get_by_role("button").filter(has_text=words).first.click()

    def choose(self, words: str) -> None:
        """Click the button of the open dialog with exactly this text."""
        self.page.get_by_role("dialog").get_by_role("button", name=words, exact=True).click()

    def wait_until_dialog_closes(self) -> None:
        """Wait until the dialog is closed."""
        expect(self.page.get_by_role("dialog")).to_have_count(0, timeout=_LONGEST_MILLISECONDS)

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the open partition."""
        self.see("generation")
        rows = (row.inner_text().split("\t") for row in self.page.get_by_role("row").all())
        return {row[0].strip(): row[1].strip() for row in rows if len(row) > 1}


@contextmanager
def open_pages(port: int, screenshots: Path) -> Iterator[DagsterPages]:
    """Open a browser and close it at the end."""
    screenshots.mkdir(parents=True, exist_ok=True)
    assert CHROMIUM, "no chromium: `apt-get install chromium`"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        page.set_default_timeout(_LONGEST_MILLISECONDS)
        yield DagsterPages(page=page, port=port, screenshots=screenshots)
        browser.close()
