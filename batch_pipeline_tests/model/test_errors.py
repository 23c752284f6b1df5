"""Messages of errors."""

from batch_pipeline.model.errors import BadFileError, InvalidValueError


def test_long_value_is_truncated_in_message() -> None:
    message = str(InvalidValueError("schema", ["x" * 80] * 900, "an object"))
    assert message.startswith("schema is ['xxx")
    assert message.endswith("x …; expected an object.")
    assert len(message) < 1_100
    assert str(InvalidValueError("batch", 0, "more than 0")) == "batch is 0; expected more than 0."


def test_bad_file_message_of_user_table_does_not_mention_registration() -> None:
    message = str(BadFileError("orders", "file:///a.csv", 3, "is bad", is_registered=False))
    assert "Repair the file, or set `on_bad_file: quarantine`" in message
    assert "--accept-changed" in str(BadFileError("orders", "file:///a.csv", 3, "is bad"))
