"""Property tests try the same examples in each run of the same code, new ones only if asked to."""

from hypothesis import given, settings
from hypothesis import strategies as st

FEW = settings(max_examples=20)  # made at import, as those of the property tests are


def examples() -> list[int]:
    """Run a property test and return what it tried."""
    tried: list[int] = []

    @FEW
    @given(st.integers())
    def collect(value: int) -> None:
        tried.append(value)

    collect()
    return tried


def test_property_run_twice_tries_the_same_examples_unless_long(long_form: bool) -> None:
    # A profile of the command line, such as `nightly`, searches at random, too.
    searches = long_form or settings.get_current_profile_name() not in {"usual", "default"}
    assert (examples() == examples()) is not searches
