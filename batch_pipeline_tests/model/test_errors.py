"""Messages of errors."""

from batch_pipeline.model.errors import InvalidValueError


def test_long_value_is_truncated_in_message() -> None:
    message = str(InvalidValueError("schema", ["x" * 80] * 900, "an object"))
    assert message.startswith("schema is ['xxx")
    assert message.endswith("x …; expected an object.")
    assert len(message) < 1_100
    assert str(InvalidValueError("batch", 0, "more than 0")) == "batch is 0; expected more than 0."
