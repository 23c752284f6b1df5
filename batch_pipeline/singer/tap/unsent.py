"""What of a stream has not been sent yet, and the bookmark that moves past what has."""

from collections.abc import Iterator, MutableMapping
from itertools import chain
from typing import Any

from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.singer.bookmarks import Bookmark, bookmark_json, bookmark_of
from batch_pipeline.singer.tap.source import PublishedSource

STATE_PLACE = "the state given to the tap"


class Unsent:
    """Published manifests behind a bookmark, in order, each once; `state` is kept up to date.

    `state` is the stream's part of a STATE value; `from_start` goes by none.

    Raises:
        StateFileError: the state is not one of ours.
    """

    def __init__(
        self,
        source: PublishedSource,
        stream: str,
        state: MutableMapping[str, Any],
        *,
        from_start: bool,
        backfills: bool,
    ) -> None:
        self._state = state
        if from_start or not state:
            self._bookmark = Bookmark()
            state.clear()
            state["publish_number"] = 0
        else:
            self._bookmark = bookmark_of(dict(state), stream, path=STATE_PLACE)
        self._left = source.published(stream, self._bookmark, backfills=backfills)

    def __iter__(self) -> Iterator[tuple[int, Manifest]]:
        """Give what is left; `move_past` each one before its STATE is written."""
        return self

    def __next__(self) -> tuple[int, Manifest]:
        """Give the next one."""
        return next(self._left)

    def first(self) -> Manifest | None:
        """Look at the next one, None at the end."""
        found = next(self._left, None)
        if found is None:
            return None
        self._left = chain((found,), self._left)
        return found[1]

    def move_past(self, publish_number: int, manifest: Manifest) -> bool:
        """Let the state say that everything up to this manifest has been sent.

        Tells whether it did not say so yet.
        """
        before, self._bookmark = self._bookmark, self._bookmark.after(manifest, publish_number)
        if self._bookmark == before:
            return False
        said = bookmark_json(manifest, self._bookmark)
        self._state.update(said)  # in one go: it may be written at any moment, so never cleared
        return True
