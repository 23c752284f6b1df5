"""Where a stream's files lie, seen together: what it writes must not land in it again.

Texts of URIs only; links and mounts of disks are not followed.
"""

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.stream import Source, Stream


def check_apart(stream: Stream) -> None:
    """Check that no file that the stream writes is one that its landing lists.

    Hidden folders of a landing are not listed, so that it may write there.

    Raises:
        InvalidValueError: storage is the landing, or lies in it.
    """
    if not isinstance(stream.source, Source):
        return
    landing = f"{stream.source.uri}/"
    root = stream.storage.root
    below = f"{root}/"
    is_hidden = "/." in f"/{below.removeprefix(landing)}"
    if below.startswith(landing) and not is_hidden:
        expected = f"a place outside of `source.uri` ({stream.source.uri}), or part files land"
        raise InvalidValueError(
            "storage.root", root, f"{expected} there, and are read and written again"
        )
