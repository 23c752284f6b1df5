"""Charts as shapes: where bars, lines, ticks and words go. They become SVG in `chart.svg.j2`.

A chart shows one row of values from zero up, so that no colour has to be told from another.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise

from batch_pipeline.domain.words import count_of

WIDTH, HEIGHT = 720, 240

_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 14, 30, 44
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_WIDEST_BAR = 48.0
_TICKS_UP, _TICKS_ALONG = 4, 5
_WIDEST_TIME = 100.0
_ROW_HEIGHT, _NAME_WIDTH, _NUMBER_WIDTH = 30, 110, 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What is measured: its name with the unit, and how a value is written.

    Ticks are 1, 2 or 5 times a power of ten apart; on `binary` axes, of bytes, powers of two; on
    `whole` ones never fractions.
    """

    name: str
    text: Callable[[float], str]
    binary: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A place on an axis, in pixels, and what is written there."""

    place: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar in pixels, and what it tells whoever points at it."""

    x: float
    y: float
    width: float
    height: float
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture in pixels; `line` holds the corners of a stepped line, `names` what rows show."""

    title: str
    told: str
    y_name: str = ""
    x_name: str = ""
    up: tuple[Tick, ...] = ()
    along: tuple[Tick, ...] = ()
    bars: tuple[Bar, ...] = ()
    line: tuple[tuple[float, float], ...] = ()
    names: tuple[Tick, ...] = ()
    numbers: tuple[tuple[float, float, str], ...] = ()
    height: int = HEIGHT
    width: int = WIDTH
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    bottom: int = HEIGHT - _BOTTOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A value at a time, and what it belongs to."""

    at: datetime
    value: float
    name: str = ""


def bars(title: str, axis: Axis, values: Sequence[Measured]) -> Chart:
    """Draw a bar for each value, side by side in their order; times stand below some of them."""
    up, top = _up(axis, max((one.value for one in values), default=0.0))
    slot = _PLOT_WIDTH / max(len(values), 1)
    width = min(slot * (0.8 if slot > 4 else 1.0), _WIDEST_BAR)
    drawn = tuple(
        Bar(
            x=_rounded(_LEFT + (place + 0.5) * slot - width / 2),
            y=_rounded(_y(one.value, top)),
            width=_rounded(width),
            height=_rounded(HEIGHT - _BOTTOM - _y(one.value, top)),
            told=f"{one.name}, {_exact(one.at)}: {axis.text(one.value)}",
        )
        for place, one in enumerate(values)
    )
    shown = _spread(len(values))
    times = short_times([values[place].at for place in shown])
    along = tuple(
        _tick_along(_LEFT + (place + 0.5) * slot, text)
        for place, text in zip(shown, times, strict=True)
    )
    x_name = "each batch by when it was published (UTC), the newest right"
    return Chart(
        title=title,
        told=_told(axis, values),
        y_name=axis.name,
        x_name=x_name,
        up=up,
        along=along,
        bars=drawn,
    )


def steps(title: str, axis: Axis, values: Sequence[Measured]) -> Chart:
    """Draw a line that keeps each value until the time of the next; the last value is now."""
    up, top = _up(axis, max((one.value for one in values), default=0.0))
    begin, end = values[0].at, values[-1].at
    seconds = max((end - begin).total_seconds(), 1e-6)

    def x(at: datetime) -> float:
        return _rounded(_LEFT + (at - begin).total_seconds() / seconds * _PLOT_WIDTH)

    line = [(x(begin), _rounded(_y(values[0].value, top)))]
    for before, one in pairwise(values):
        line += [
            (x(one.at), _rounded(_y(before.value, top))),
            (x(one.at), _rounded(_y(one.value, top))),
        ]
    at = [begin + (end - begin) * place / (_TICKS_ALONG - 1) for place in range(_TICKS_ALONG)]
    along = tuple(
        _tick_along(x(time), text) for time, text in zip(at, short_times(at), strict=True)
    )
    return Chart(
        title=title,
        told=_told(axis, values),
        y_name=axis.name,
        x_name="time (UTC), now is right",
        up=up,
        along=along,
        line=tuple(line),
    )


def rows(title: str, unit: str, counts: Sequence[tuple[str, int]]) -> Chart:
    """Draw a bar across for each name, with its number at the end."""
    most = max((number for _, number in counts), default=0) or 1
    room = WIDTH - _NAME_WIDTH - _NUMBER_WIDTH
    drawn, names, numbers = [], [], []
    for place, (name, number) in enumerate(counts):
        y, width = place * _ROW_HEIGHT, _rounded(number / most * room)
        told = f"{name}: {number:,} {unit}"
        drawn.append(Bar(x=_NAME_WIDTH, y=y + 5, width=width, height=_ROW_HEIGHT - 10, told=told))
        names.append(Tick(place=y + _ROW_HEIGHT / 2, text=name))
        numbers.append((_NAME_WIDTH + width + 8, y + _ROW_HEIGHT / 2, f"{number:,}"))
    height = max(len(counts), 1) * _ROW_HEIGHT
    return Chart(
        title=title,
        told="; ".join(bar.told for bar in drawn),
        bars=tuple(drawn),
        names=tuple(names),
        numbers=tuple(numbers),
        height=height,
        left=_NAME_WIDTH,
        bottom=height,
    )


def tick_step(top: float, *, binary: bool = False, whole: bool = False) -> float:
    """Give the smallest round distance of ticks of which four reach the top."""
    wanted = top / _TICKS_UP
    if wanted <= 0:
        return 1.0
    return next(
        step for step in _round_numbers(binary=binary, whole=whole) if step >= wanted * (1 - 1e-9)
    )


def short_times(times: Sequence[datetime]) -> list[str]:
    """Write times, in UTC, as short as their span allows; the first one has its date."""
    if not times:
        return []
    own = [time.astimezone(UTC) for time in times]
    span = max(own) - min(own)
    if span > timedelta(days=300):
        return [f"{time:%Y-%m-%d}" for time in own]
    if span > timedelta(days=4):
        return [f"{time:%d %b}" for time in own]
    form = "%H:%M:%S" if span < timedelta(minutes=10) else "%H:%M"
    return [
        f"{time:%d %b }{time:{form}}"
        if place == 0 or time.date() != own[place - 1].date()
        else f"{time:{form}}"
        for place, time in enumerate(own)
    ]


def _round_numbers(*, binary: bool, whole: bool) -> Iterator[float]:
    if binary:
        for power in count():
            yield 2.0**power
    for power in count(0 if whole else -9):
        yield from (one * 10.0**power for one in (1, 2, 5))


def _up(axis: Axis, top: float) -> tuple[tuple[Tick, ...], float]:
    """Give the ticks of an axis and the value at its upper end."""
    step = tick_step(top, binary=axis.binary, whole=axis.whole)
    number = max(1, -int(-top * (1 - 1e-9) // step))
    highest = number * step
    ticks = (
        Tick(place=_rounded(_y(place * step, highest)), text=axis.text(place * step), anchor="end")
        for place in range(number + 1)
    )
    return tuple(ticks), highest


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - value / top * _PLOT_HEIGHT


def _spread(number: int) -> list[int]:
    """Pick up to five places, evenly spread, the first and the last among them."""
    if number <= _TICKS_ALONG:
        return list(range(number))
    return [round(place * (number - 1) / (_TICKS_ALONG - 1)) for place in range(_TICKS_ALONG)]


def _tick_along(place: float, text: str) -> Tick:
    """Write a time in the middle below its tick, or before it where the picture would end."""
    is_near_end = place + _WIDEST_TIME / 2 > WIDTH
    return Tick(place=_rounded(place), text=text, anchor="end" if is_near_end else "middle")


def _told(axis: Axis, values: Sequence[Measured]) -> str:
    if not values:
        return "no values"
    amounts = [one.value for one in values]
    least, most, last = (axis.text(one) for one in (min(amounts), max(amounts), amounts[-1]))
    return f"{axis.name}: {count_of(len(values), 'value')} from {least} to {most}, the last {last}"


def _exact(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _rounded(pixels: float) -> float:
    return round(pixels, 2)
