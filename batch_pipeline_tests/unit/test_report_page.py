"""What the report says, and that nothing in it is markup of somebody else."""

from html.parser import HTMLParser

from batch_pipeline.cli.console import visible
from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.fitting import Learned
from batch_pipeline.domain.recent_work import Outlook
from batch_pipeline.report.page import page
from batch_pipeline.report.stream_report import StreamReport
from batch_pipeline.report.words import Card, cards, number, share
from batch_pipeline_tests.factories import NOON
from batch_pipeline_tests.report_scene import failed, published, report, waits, work

HOSTILE = "</title></style><script>alert(1)</script><img src=http://example.org/x>'\"&\u202e"


class Elements(HTMLParser):
    """Collects the names of elements, and the attributes that could fetch something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.fetched: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.names.append(tag)
        self.fetched += [value for name, value in attrs if name in {"src", "href", "srcset"}]


def written(*reports: StreamReport) -> str:
    """Write the page."""
    return page(reports, place="localhost/inventory", at=NOON, shown=visible)


def figures(one: StreamReport) -> dict[str, Card]:
    """Give the cards by name."""
    return {card.name: card for card in cards(one)}


def test_cards_tell_the_backlog_with_what_is_not_planned() -> None:
    """Expect all that waits, the dead included, its age, and the items in no batch."""
    card = figures(report())["Backlog now"]
    assert card.figure == "8 items, 6.8 KiB"
    assert card.notes == (
        "the oldest has waited for 5m",
        "2 items, 400 B, are in no batch yet",
    )


def test_forecast_leaves_out_the_dead() -> None:
    """Expect 1,000 bytes at 10 a second."""
    assert report().forecast.empty_after is not None
    card = figures(report())["Forecast"]
    assert card.figure == "empty after 1m 40s of work"
    assert "without 1 dead, which waits for a person" in card.notes
    assert "last published 3m ago" in card.notes


def test_forecast_of_a_growing_backlog_tells_by_how_much() -> None:
    """Expect the difference of what is planned and what is done."""
    grows = work(2, published(1), waiting=(waits(1.5, weight=1200),))
    one = report(work=grows)
    assert one.forecast.outlook is Outlook.GROWS
    assert figures(one)["Forecast"].figure == "grows by 10 B/s"


def test_cards_of_the_last_batches_are_medians() -> None:
    """Expect pace, size and quarantine of what was published."""
    told = figures(report())
    assert told["Throughput"].figure == "1.5 records/s"
    assert (told["Batch size"].figure, told["Batch size"].notes[0]) == ("600 B", "done in 1m")
    assert (told["Quarantine"].figure, told["Quarantine"].notes[0]) == (
        "10 %",
        "20 of 200 records read",
    )


def test_report_of_an_unreadable_table_tells_the_rest() -> None:
    """Expect the problem, and what is planned as the backlog."""
    one = report(standing=None, problem="no such table")
    assert figures(one)["Backlog now"].figure == "2 batches, 6.4 KiB"
    assert "no such table" in written(one)


def test_report_of_a_new_stream_has_no_empty_charts() -> None:
    """Expect the states alone, and words for what is not known."""
    one = StreamReport(stream="new", source="file:///landing", work=work(0), states={})
    text = written(one)
    assert Elements(text).names.count("svg") == 1
    assert "nothing to do" in text
    assert "has failed" in text


def test_report_without_streams_says_so() -> None:
    """Expect a page all the same."""
    assert "There is no stream." in written()


def test_texts_of_others_are_no_markup() -> None:
    """Expect no element of theirs, wherever they stand, and characters that turn text spelt out."""
    one = report(
        stream=HOSTILE,
        source=HOSTILE,
        problem=HOSTILE,
        paused=HOSTILE,
        work=work(5, published(1, label=HOSTILE), failures=(failed(label=HOSTILE, error=HOSTILE),)),
    )
    told, plain = Elements(written(one, one)), Elements(written(report(), report()))
    assert set(told.names) - {"strong"} == set(plain.names)
    assert "script" not in told.names
    assert all(value is None or value.startswith(("#", "data:,")) for value in told.fetched)
    assert "\\u202e" in written(one)
    assert "\u202e" not in written(one)


def test_failures_stand_with_reason_and_state() -> None:
    """Expect the key, the reason and where the batch stands now."""
    one = report(work=work(5, failures=(failed(), failed(error=None, state=BatchState.DEAD))))
    text = written(one)
    assert "orders-0004.csv:17: expected 3 columns, found 2" in text
    assert "none was given" in text
    assert "<bdi>dead</bdi>" in text


def test_small_shares_are_not_zero() -> None:
    """Expect a single record of a million not to vanish, and numbers with thousands apart."""
    assert [share(ratio) for ratio in (0, 1e-6, 0.0123, 1)] == [
        "0 %",
        "under 0.01 %",
        "1.23 %",
        "100 %",
    ]
    assert [number(value) for value in (0, 1.234, 12345.6)] == ["0", "1.23", "12,346"]


def test_card_of_a_learned_limit_says_where_it_rests() -> None:
    """Expect the limit with its reason, and outright that it cannot be lower; else no card."""
    learned = Learned(
        target_seconds=60, max_weight=100, most_weight=6_400, weight_per_second=1, attempts=5
    )
    card = figures(report(learned=learned))["Learned limit"]
    assert card.figure == "100 B"
    assert card.notes == (
        "at most 100 B; 1m are 60 B, at 1 B/s",
        "by the last 5 batches that were full or took longer",
        (
            "this is the least, a 64th of max_weight: batches take longer than 1m even so; "
            "lower max_weight, or raise target_seconds"
        ),
    )
    assert "the least, a 64th" in written(report(learned=learned))
    assert "Learned limit" not in figures(report())
