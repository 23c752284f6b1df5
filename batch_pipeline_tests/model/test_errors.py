"""What errors repeat of a value that somebody gave."""

from batch_pipeline.model.errors import InvalidValueError


def test_long_value_is_cut_in_the_message() -> None:
    told = str(InvalidValueError("schema", ["x" * 80] * 900, "an object"))
    assert told.startswith("schema is ['xxx")
    assert told.endswith("x …; expected an object.")
    assert len(told) < 1_100
    assert str(InvalidValueError("batch", 0, "more than 0")) == "batch is 0; expected more than 0."
