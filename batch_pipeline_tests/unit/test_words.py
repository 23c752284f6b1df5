"""Numbers with their nouns."""

import pytest

from batch_pipeline.domain.words import agreeing, column_of, count_of, last_of


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (0, "file", "0 files"),
        (1, "file", "1 file"),
        (2, "file", "2 files"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (1, "new batch", "1 new batch"),
        (3, "new batch", "3 new batches"),
        (1, "try", "1 try"),
        (2, "try", "2 tries"),
        (2, "entry", "2 entries"),
        (2, "key", "2 keys"),
        (2, "loss", "2 losses"),
        (2, "index", "2 indexes"),
        (1200, "batch", "1200 batches"),
    ],
)
def test_noun_has_the_number_of_its_count(count: int, noun: str, words: str) -> None:
    """Expect the plural of the last word for every count but one."""
    assert count_of(count, noun) == words


def test_thousands_are_set_apart_on_demand() -> None:
    """Expect commas only for who asks."""
    assert count_of(1_234_567, "record", grouped=True) == "1,234,567 records"
    assert count_of(1, "record", grouped=True) == "1 record"


def test_irregular_plural_is_taken_as_given() -> None:
    """Expect the words of the caller for every count but one."""
    assert count_of(1, "index", plural="indices") == "1 index"
    assert count_of(2, "index", plural="indices") == "2 indices"


def test_last_one_goes_without_a_number() -> None:
    """Expect the number where there are several."""
    assert last_of(1, "published batch") == "the last published batch"
    assert last_of(20, "published batch") == "the last 20 published batches"


def test_columns_stay_aligned() -> None:
    """Expect one place for the end of numbers and one for what comes behind the noun."""
    rows = [f"{column_of(count, 'batch', width=4)}|" for count in (1, 12, 1234)]
    assert rows == ["   1 batch  |", "  12 batches|", "1234 batches|"]


def test_verb_agrees_with_its_count() -> None:
    """Expect the singular for one alone."""
    assert [agreeing(count, "is", "are") for count in (0, 1, 2)] == ["are", "is", "are"]
