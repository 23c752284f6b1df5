"""Numbers with their nouns, as people read them. What is counted is not known here."""

_HISSING = ("s", "x", "z", "ch", "sh")
_VOWELS = "aeiou"


def count_of(count: int, noun: str, *, plural: str | None = None, grouped: bool = False) -> str:
    """Say how many there are: `1 new batch`, `2 new batches`; `grouped` sets thousands apart.

    The last word of the noun gets its plural by rule; a `plural` that is given replaces all of it.
    """
    number = f"{count:,}" if grouped else str(count)
    return f"{number} {agreeing(count, noun, plural or _plural(noun))}"


def last_of(count: int, noun: str) -> str:
    """Name the last ones: `the last batch`, `the last 3 batches`."""
    return f"the last {noun if count == 1 else count_of(count, noun)}"


def column_of(count: int, noun: str, *, width: int) -> str:
    """Say how many there are in a table: numbers end, and what follows begins, at one place."""
    plural = _plural(noun)
    return f"{count:>{width}} {agreeing(count, noun, plural):<{len(plural)}}"


def agreeing(count: int, one: str, many: str) -> str:
    """Choose the words that go with a number: `is` with 1, `are` with any other."""
    return one if count == 1 else many


def _plural(noun: str) -> str:
    if noun.endswith(_HISSING):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in _VOWELS:
        return f"{noun[:-1]}ies"
    return f"{noun}s"
