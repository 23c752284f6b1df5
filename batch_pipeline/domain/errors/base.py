"""The root of all errors raised on purpose, and its branches: what the catcher does with each.

No single failure is named here.
"""


class PipelineError(Exception):
    """Base of all errors raised on purpose; `str()` of it is meant for the operator."""

    def sentence(self) -> str:
        """Say what, where, what is left and what to do, in one or two lines."""
        raise NotImplementedError  # pragma: no cover - every leaf has its sentence

    def __str__(self) -> str:
        return self.sentence()


class ConfigurationError(PipelineError):
    """The operator fixes something; repeating alone never helps."""


class RetryableError(PipelineError):
    """Wait and repeat; nothing has to be changed."""


class ConflictError(PipelineError):
    """Somebody else won; read again and decide."""


class BatchDataError(PipelineError):
    """This batch is bad; its attempt fails and its neighbours go on."""


class InvariantError(PipelineError):
    """A promise of this code is broken; stop."""
