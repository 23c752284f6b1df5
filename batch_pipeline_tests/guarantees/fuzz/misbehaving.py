"""Targets that misbehave, for tests of the harness."""

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
                large = bytearray(b"x") * _MUCH
                del large
            case b"refuse":
                return Outcome.REFUSED
        return Outcome.READ

    return check


def _target(word: str) -> Target:
    return Target(word, st.integers().map(lambda _: iter([word.encode()])), _open_check, 1, 1)


TARGETS = {word: _target(word) for word in WORDS}
_SOMETIMES = st.integers().map(lambda number: iter([b"crash" if number % 10 == 5 else b"read"]))
TARGETS["sometimes"] = Target("sometimes", _SOMETIMES, _open_check, 1, 1)
