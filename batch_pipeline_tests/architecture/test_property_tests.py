"""Property tests try the same examples in each run of the same code, unless run with `--long`."""

from hypothesis import given, settings
from hypothesis import strategies as st

FEW = settings(max_examples=20)  # created at import, as in property tests


def examples() -> list[int]:
    """Run a property test and return the values that it tried."""
    tried: list[int] = []

    @FEW
    @given(st.integers())
    def collect(value: int) -> None:
        tried.append(value)

    collect()
    return tried


def test_property_test_repeats_its_examples_unless_long(long_form: bool) -> None:
    # A profile of the command line, such as `nightly`, uses random examples, too.
    is_random = long_form or settings.get_current_profile_name() not in {"usual", "default"}
    assert (examples() == examples()) is not is_random
