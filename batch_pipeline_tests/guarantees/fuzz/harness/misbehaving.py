"""Targets that do what no reader may: with them the harness shows that it sees such things."""

import ctypes
from pathlib import Path

from batch_pipeline_tests.guarantees.fuzz.harness.targets import Check, Outcome, Target, expect

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
        corpus=lambda _: [word.encode()],
        make=lambda _, corpus: bytes(corpus[0]),
        open_check=_open_check,
        short=1,
        long=1,
    )


TARGETS = {word: _target(word) for word in WORDS}
