"""The report, opened in a real browser without a network.

Pictures of it are kept in pytest's cache folder, below `d/pictures`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import ViewportSize

from batch_pipeline.cli.console import visible
from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.standing import Amount, Standing
from batch_pipeline.report.page import page
from batch_pipeline_tests.acceptance.dagster_pages import DagsterPages, open_pages
from batch_pipeline_tests.factories import NOON
from batch_pipeline_tests.report_scene import (
    MINUTE,
    failed,
    published,
    report,
    waits,
    work,
)

HOSTILE = "</svg><script>console.error(1)</script><img src='http://example.org/x'>"
WIDE = ViewportSize(width=1500, height=1000)
NARROW = ViewportSize(width=390, height=844)


_SIZES_OF_WORDS = """Array.from(document.querySelectorAll('svg text'), one =>
    parseFloat(getComputedStyle(one).fontSize) * one.getScreenCTM().a)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A report in a browser, and what went on while it was opened."""

    pages: DagsterPages
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


def busy_day() -> str:
    """Write the report of two streams: one of a day with 80 batches, one with hostile names."""
    day = [
        published(
            place * 12 + place % 7,
            label=f"{place * 10 + 1:012}-{place * 10 + 10:012}",
            planned_at=NOON + (place // 8 * 96 - 30) * MINUTE,
            seconds=20 + place * 7 % 40,
            weight=(40 + place * 37 % 25) * 2**20,
            read=90_000 + place * 4_111 % 30_000,
            written=89_900 + place * 4_111 % 30_000,
            quarantined=100 * (place % 9 == 0),
            size_bytes=(11 + place * 13 % 7) * 2**20,
        )
        for place in range(80)
    ]
    waiting = (waits(900, batches=7, weight=7 * 50 * 2**20),)
    counts = {
        BatchState.PUBLISHED: 1204,
        BatchState.PLANNED: 5,
        BatchState.RUNNING: 1,
        BatchState.FAILED: 1,
    }
    states = {
        state: Amount(batches=number, items=10 * number, size_bytes=50 * number * 2**20)
        for state, number in counts.items()
    }
    orders = report(
        states=counts,
        standing=Standing(states=states, items_not_planned=4, not_published_for=70 * MINUTE),
        work=work(970, *day, is_whole=False, waiting=waiting, failures=(failed(), failed(2))),
    )
    other = report(
        stream=HOSTILE,
        work=work(5, published(1, label=HOSTILE), failures=(failed(error=HOSTILE * 9),)),
        problem="The table ops.files cannot be read.",
        standing=None,
    )
    at = orders.work.at + timedelta(seconds=1)
    return page([orders, other], place="localhost/inventory", at=at, shown=visible)


@pytest.fixture(scope="module")
def opened(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Opened]:
    """The report of a busy day, as a file in a browser."""
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(busy_day(), encoding="utf-8")
    with open_pages(0, request.config.cache.mkdir("pictures")) as pages:
        one = Opened(pages=pages)
        pages.page.on("request", lambda asked: one.requests.append(asked.url))
        pages.page.on("console", lambda message: one.messages.append(message.text))
        pages.page.on("pageerror", lambda error: one.messages.append(str(error)))
        pages.page.goto(path.as_uri())
        yield one


def test_report_asks_nobody_and_complains_of_nothing(opened: Opened) -> None:
    """Expect the file itself and what is within it, no message, and hostile names as text."""
    shown = opened.pages.page
    assert shown.get_by_role("heading", name=HOSTILE).is_visible()
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in opened.requests) == 1
    assert opened.messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_have_a_size_and_words_that_can_be_read(opened: Opened, scheme: str) -> None:
    """Expect a picture for each chart, its words no smaller than 9 pixels, on either ground."""
    shown = opened.pages.page
    shown.set_viewport_size(WIDE)
    shown.emulate_media(color_scheme=scheme)  # type: ignore[arg-type] # one of the two
    shown.screenshot(path=opened.pages.pictures / f"report-{scheme}.png", full_page=True)
    boxes = [one.bounding_box() for one in shown.locator("svg").all()]
    assert len(boxes) == 16
    assert all(box is not None and box["width"] > 300 and box["height"] > 100 for box in boxes)
    sizes = shown.evaluate(_SIZES_OF_WORDS)
    assert min(sizes) >= 9
    ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[scheme]


def test_figures_of_charts_are_a_table_below(opened: Opened) -> None:
    """Expect the table of the batches to open with a row for each."""
    shown = opened.pages.page
    table = shown.locator("details", has_text="Published batches in figures").first
    assert not table.get_by_role("table").is_visible()
    table.locator("summary").click()
    assert table.get_by_role("row").count() == 81
    shown.screenshot(path=opened.pages.pictures / "report-figures.png")
    table.locator("summary").click()


def test_report_fits_a_narrow_window(opened: Opened) -> None:
    """Expect nothing to stand out at the side."""
    shown = opened.pages.page
    shown.set_viewport_size(NARROW)
    shown.screenshot(path=opened.pages.pictures / "report-narrow.png", full_page=True)
    assert shown.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    assert min(shown.evaluate(_SIZES_OF_WORDS)) >= 9
