"""File kinds, file name patterns and stream names that are derived from file names."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.config.stream_proposal import common_word, kind_of, name_pattern
from batch_pipeline.model.stream import STREAM_NAME, stream_name_of


@pytest.mark.parametrize(
    ("name", "word", "ending", "full_ending"),
    [
        ("orders-2026-01-24.csv", "orders-", ".csv", ".csv"),
        ("orders-2026-01-24.csv.gz", "orders-", ".csv", ".csv.gz"),
        ("ORDERS_7.CSV.GZ", "ORDERS_", ".csv", ".CSV.GZ"),
        ("customers.jsonl", "customers", ".jsonl", ".jsonl"),
        ("sales_Q1_2026.json", "sales_", ".json", ".json"),
        ("part-00000-4f1c.snappy.parquet", "part-", ".parquet", ".parquet"),
        ("4f1c02aa-77de-11ee-b962.jsonl.zst", "", ".jsonl", ".jsonl.zst"),
        ("export.2026", "export.", "", ""),
        ("dump.gz", "dump", "", ".gz"),
        (".csv", ".csv", "", ""),
        ("a\n1.csv", "", ".csv", ".csv"),
    ],
)
def test_kind_of_file_name(name: str, word: str, ending: str, full_ending: str) -> None:
    kind, found_ending = kind_of(name)
    assert (kind.word, kind.ending, found_ending) == (word, ending, full_ending)


@pytest.mark.parametrize(
    ("prefix", "word"),
    [
        ("dpc-covid19-regions-202", "dpc-covid19-regions-"),
        ("orders-2026-01-0", "orders-"),
        ("log_2026_jan_0", "log_"),
        ("part0000", "part"),
        ("sales_Q", "sales_"),
        ("7", ""),
        ("", ""),
    ],
)
def test_common_word_ends_before_a_number(prefix: str, word: str) -> None:
    assert common_word(prefix) == word


@settings(max_examples=40)
@given(st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=20))
def test_pattern_of_a_kind_matches_its_file(name: str) -> None:
    kind, ending = kind_of(name)
    assert fnmatchcase(name, name_pattern(kind.word, ending))


@settings(max_examples=40)
@given(st.text(max_size=12).map(lambda text: text * 10))
def test_stream_name_of_any_text_is_valid_or_none(text: str) -> None:
    name = stream_name_of(text)
    assert name is None or STREAM_NAME.fullmatch(name)


def test_stream_name_keeps_letters_and_digits() -> None:
    assert stream_name_of("Umsätze 2026 (neu)") == "Ums_tze_2026_neu"
    assert stream_name_of("orders-") == "orders"
    assert stream_name_of("受注") is None
