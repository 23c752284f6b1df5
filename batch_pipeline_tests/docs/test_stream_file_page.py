"""The reference of stream files says what the models say."""

from batch_pipeline_tests.docs.stream_file_page import PAGE, parts, text
from batch_pipeline_tests.docs.stream_file_types import told_default, written_default


def test_page_is_what_the_models_give() -> None:
    """Expect the page as `python -m batch_pipeline_tests.docs` would write it."""
    assert PAGE.read_text(encoding="utf-8") == text()


def test_descriptions_tell_the_default_that_holds() -> None:
    """Expect a default that is told in words, for Dagster's pages, to be the one of the model."""
    wrong, compared = [], 0
    for part in parts():
        for key, field in part.keys.items():
            told, written = told_default(field), written_default(field)
            if told is not None and written is not None:
                compared += 1
                if told != written:
                    wrong.append(f"{part.path}.{key}: {told}, but {written}")
    assert wrong == []
    assert compared > 20


def test_each_key_has_a_meaning() -> None:
    """Expect no key of a stream file without a description that ends as a sentence."""
    silent = [
        f"{part.path}.{key}"
        for part in parts()
        for key, field in part.keys.items()
        if not (field.description or "").endswith(".")
    ]
    assert silent == []
