"""One file on its way into a landing in S3: a nameless file of a disk until it is sent as a whole.

What is in it the writers know; nothing is registered here.
"""

import tempfile
from contextlib import suppress
from typing import IO

from batch_pipeline.domain.errors import PipelineError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.item import FoundFile
from batch_pipeline.domain.location import join_uri
from batch_pipeline.singer.target.refusals import LandingFailedError, LandingUnreachableError
from batch_pipeline.stores.facts import look
from batch_pipeline.stores.failures import UnreachableError, reason_of
from batch_pipeline.stores.upload import ObjectUpload

_CHUNK = 2**20
_LEFT = "{} may be there as a whole, and would come twice: delete it before the tap runs again"


class LandingObject:
    """An object that is not there before all of it is.

    Raises:
        LandingFailedError: there is no room for it on a disk.
    """

    def __init__(self, root: str, name: str) -> None:
        self._root = root
        self._uri = join_uri(root, name)
        try:
            self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - land and abandon close
        except OSError as error:
            raise self.failed(error) from error

    def land(self) -> FoundFile:
        """Send the file, and tell what has landed.

        Raises:
            LandingFailedError: the store refuses; nothing is there.
            LandingUnreachableError: it does not take it now; nothing is there.
        """
        upload = ObjectUpload(self._uri)
        try:
            self.file.seek(0)
            while octets := self.file.read(_CHUNK):
                upload.write(octets)
            failpoint("target.before_rename")
            upload.seal()
            upload.complete()
            self.file.close()
            facts = look(self._uri)
        except OSError as error:
            left = "" if upload.abort() else f"; {_LEFT.format(self._uri)}"
            raise self.failed(error, left) from error
        failpoint("target.after_rename")
        return FoundFile(
            location=self._uri,
            size_bytes=facts.size_bytes,
            modified_at=facts.modified_at,
            etag=facts.etag,
        )

    def abandon(self) -> None:
        """Forget the file, as if nothing had come; what has landed stays."""
        with suppress(OSError):
            self.file.close()

    def failed(self, error: OSError, left: str = "") -> PipelineError:
        """Forget the file and say why it cannot land, and what may be left of it."""
        if hasattr(self, "file"):
            self.abandon()
        kind = (
            LandingUnreachableError if isinstance(error, UnreachableError) else LandingFailedError
        )
        return kind(self._root, f"{reason_of(error)}{left}")
