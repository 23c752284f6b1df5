"""The page: templates filled with values; every text is escaped by the template engine."""

from collections.abc import Callable, Sequence
from datetime import datetime

from jinja2 import Environment, PackageLoader, StrictUndefined

from batch_pipeline.report import words
from batch_pipeline.report.charts import failures, figures
from batch_pipeline.report.stream_report import StreamReport


def page(
    reports: Sequence[StreamReport],
    *,
    place: str,
    at: datetime,
    shown: Callable[[str], str],
) -> str:
    """Write the report on streams of the inventory at a place as one HTML document.

    `shown` gets every text before it is escaped, and writes out characters that change how others
    are read.
    """
    environment = Environment(
        loader=PackageLoader("batch_pipeline", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: shown(value) if type(value) is str else value,
    )
    streams = [
        {
            "report": report,
            "cards": words.cards(report),
            "figures": figures(report),
            "failures": failures(report),
        }
        for report in reports
    ]
    template = environment.get_template("page.html.j2")
    return template.render(streams=streams, place=place, at=words.when(at))
