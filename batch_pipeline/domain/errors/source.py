"""Station 1: landings that cannot be listed, and what landed and cannot be taken or read.

What is wrong inside a file is in `encode`.
"""

from dataclasses import dataclass

from batch_pipeline.domain.errors.base import ConfigurationError, RetryableError


@dataclass(eq=False)
class LandingUnavailableError(ConfigurationError):
    """The landing of a stream cannot be listed, or its events not be read."""

    stream: str
    uri: str
    reason: str

    def sentence(self) -> str:
        if not self.uri.startswith("file:"):
            return (
                f"{self.stream}: {self.uri} cannot be listed or read ({self.reason}). What has "
                f"arrived there and is not registered yet is found by the next look that can. "
                f"Mend the access, or correct `source` in the stream file."
            )
        return (
            f"{self.stream}: landing folder {self.uri} cannot be listed ({self.reason}). Nothing "
            f"was registered. Create it or correct `source.uri` in the stream file."
        )


@dataclass(eq=False)
class LandingTroubleError(ConfigurationError):
    """What a look at a landing had to leave out, told after it went on with the rest."""

    told: str

    def sentence(self) -> str:
        return self.told


@dataclass(eq=False)
class LinkLeadsOutError(ConfigurationError):
    """A link in a landing leads to a file elsewhere, which the stream does not read."""

    stream: str
    path: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: {self.path!r} was not registered, for it is a link that leads out of "
            f"the landing; what else has landed is. Put the file itself there, add the folder that "
            f"it lies in to `source.roots`, or leave the link out by `source.exclude`."
        )


@dataclass(eq=False)
class UnfitKeyError(ConfigurationError):
    """An object landed whose key cannot be the location of an item."""

    stream: str
    uri: str
    why: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: {self.uri!r} was not registered, for its key {self.why}; what else "
            f"has landed is. Copy the object to another key and delete this one, or leave it out "
            f"by `source.exclude`."
        )


@dataclass(eq=False)
class SourceUnavailableError(RetryableError):
    """An object that landed cannot be read now, through no fault of its own."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"{self.uri} cannot be read now ({self.reason}). Nothing was published, and the object "
            f"was not set aside. Run again when the store can be reached."
        )


@dataclass(eq=False)
class SourceRefusedError(SourceUnavailableError):
    """A store refuses an object that landed, or has no such bucket: no file is to blame."""

    def sentence(self) -> str:
        return (
            f"{self.uri} cannot be read ({self.reason}). Nothing of its batch was published, and "
            f"the object was not set aside. Let those who run tasks read it; the batch is tried "
            f"again by itself. If the object is gone for good, put it there again, or cancel the "
            f"batch."
        )
