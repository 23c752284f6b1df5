"""Targets that misbehave, with which the harness is tested."""

import ctypes
from pathlib import Path

from hypothesis import strategies as st

from batch_pipeline_tests.guarantees.fuzz.harness import Check, Outcome, Target, expect

WORDS = ("read", "crash", "refuse", "hang", "exception", "changed", "memory", "read again")
_MUCH = 128 * 2**20


def _open_check(_folder: Path) -> Check:
    def check(data: bytes) -> Outcome:
        match data:
            case b"crash":
                ctypes.string_at(0)
            case b"hang":
                while True:
                    pass
            case b"exception":
                raise KeyError(data)
            case b"changed":
                expect(False, "other bytes")
            case b"memory":
                hunger = bytearray(b"x") * _MUCH
                del hunger
            case b"refuse":
                return Outcome.REFUSED
        return Outcome.READ

    return check


def _target(word: str) -> Target:
    return Target(
        name=word,
        batches=st.integers().map(lambda _: iter([word.encode()])),
        open_check=_open_check,
        short=1,
        long=1,
    )


TARGETS = {word: _target(word) for word in WORDS}
TARGETS["sometimes"] = Target(
    name="sometimes",
    batches=st.integers().map(lambda number: iter([b"crash" if number % 10 == 5 else b"read"])),
    open_check=_open_check,
    short=1,
    long=1,
)
