"""What every mapping in a stream file has in common: unknown keys and unfit values are refused."""

from enum import Enum
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.settings.stream_values import refusal


class Section(BaseModel):
    """A mapping in a stream file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="after")
    def _fits_the_domain(self) -> Self:
        try:
            self.check()
        except InvalidValueError as error:
            shown = error.value.value if isinstance(error.value, Enum) else error.value
            problem = f"is {shown!r:.80}; expected {error.expected}"
            raise refusal(problem, key=error.name) from error
        return self

    def check(self) -> None:
        """Build the domain value, whose own checks then speak for this section."""
