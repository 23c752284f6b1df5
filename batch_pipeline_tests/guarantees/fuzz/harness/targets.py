"""What a target of fuzzing is: valid inputs to start from, a way to spoil them, a check of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from batch_pipeline_tests.guarantees.fuzz.harness.mutations import mutated

Check = Callable[[bytes], "Outcome"]
Make = Callable[[Random, Sequence[Any]], bytes]


class Outcome(StrEnum):
    """What became of one input; everything else is a find."""

    READ = "read"  # and what came out is what an oracle reads, where there is one
    REFUSED = "refused"


class ChangedError(AssertionError):
    """Something came out that is not what went in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One kind of input.

    `corpus` gives valid inputs for a seed, `make` one input from them, and `check`, once it is
    opened on a folder of its own, says what became of an input. `short` and `long` are how many
    inputs the two forms take.
    """

    name: str
    corpus: Callable[[int], Sequence[Any]]
    open_check: Callable[[Path], Check]
    short: int
    long: int
    make: Make = mutated


def drawn(strategy: st.SearchStrategy[Any], count: int, number: int) -> list[Any]:
    """Give examples of a strategy, the same ones for the same number."""
    found: list[Any] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def expect(is_right: bool, *told: object) -> None:
    """Raise what makes an input a find, with what shows it."""
    if not is_right:
        raise ChangedError(*told)
