"""Small plots of text: they show wherever words do."""

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], *, top: float | None = None) -> str:
    """Draw values from 0 to `top` (None: the largest of them), one block each, oldest first."""
    highest = max(values, default=0.0) if top is None else top
    if highest <= 0:
        return _BLOCKS[0] * len(values)
    last = len(_BLOCKS) - 1
    steps = (round(max(0.0, min(value, highest)) / highest * last) for value in values)
    return "".join(_BLOCKS[step] for step in steps)
