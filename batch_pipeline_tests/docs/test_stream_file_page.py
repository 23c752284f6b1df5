"""The stream file reference agrees with the models."""

from batch_pipeline_tests.docs.stream_file_page import PAGE, parts, text
from batch_pipeline_tests.docs.stream_file_types import described_default, model_default


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == text()


def test_described_defaults_are_those_of_the_models() -> None:
    wrong, compared = [], 0
    for part in parts():
        for key, field in part.keys.items():
            described, default = described_default(field), model_default(field)
            if described is not None and default is not None:
                compared += 1
                if described != default:
                    wrong.append(f"{part.path}.{key}: {described}, but {default}")
    assert wrong == []
    assert compared > 20
