"""The tap as a plugin of the Singer SDK: what it is called, takes and offers."""

import signal
import sys
from collections.abc import Sequence
from functools import cached_property
from types import FrameType
from typing import Any, ClassVar

from singer_sdk import Tap
from singer_sdk.helpers.capabilities import (
    CapabilitiesEnum,
    PluginCapabilities,
    TapCapabilities,
)
from singer_sdk.singerlib.encoding import GenericSingerWriter

from batch_pipeline.singer.bookmarks import StateFileError, bookmarks_of
from batch_pipeline.singer.tap.settings import (
    CONFIG_JSON_SCHEMA,
    TapSettingError,
    check_settings,
)
from batch_pipeline.singer.tap.source import PublishedSource
from batch_pipeline.singer.tap.stream import PublishedStream
from batch_pipeline.singer.tap.unsent import STATE_PLACE
from batch_pipeline.singer.tap.writing import LineWriter


class PublishedTap(Tap):
    """Sends published batches, each once, as BATCH or RECORD messages."""

    name = "tap-batch-pipeline"
    package_name = "batch-pipeline"
    config_jsonschema: ClassVar[dict[str, Any]] = CONFIG_JSON_SCHEMA
    capabilities: ClassVar[list[CapabilitiesEnum]] = [
        TapCapabilities.CATALOG,
        TapCapabilities.STATE,
        TapCapabilities.DISCOVER,
        PluginCapabilities.ABOUT,
        PluginCapabilities.BATCH,
        PluginCapabilities.STRUCTURED_LOGGING,
    ]
    message_writer_class: type[GenericSingerWriter[Any, Any]] = LineWriter
    stream_class: ClassVar[type[PublishedStream]] = PublishedStream
    _told_to_stop: int | None = None

    @classmethod
    def append_builtin_config(cls, config_jsonschema: dict[str, Any]) -> None:
        """Add none of the SDK's settings: stream maps and flattening belong to stream files."""

    def open_source(self) -> PublishedSource:
        """Give where streams and manifests come from, once per tap."""
        raise NotImplementedError

    @cached_property
    def source(self) -> PublishedSource:
        """Where streams and manifests come from."""
        return self.open_source()

    def setup_mapper(self) -> None:
        """Set up what the SDK wants of a tap, after refusing to map records."""
        check_settings(self.config)
        super().setup_mapper()

    def load_state(self, state: dict[str, Any]) -> None:
        """Take the bookmarks of a STATE value, or of a whole STATE message.

        Raises:
            StateFileError: there are none in it, though it is not empty; one is no object.
        """
        written = bookmarks_of(state, path=STATE_PLACE)
        found = {stream: one for stream, one in written.items() if one is not None}
        for stream, one in found.items():
            if not isinstance(one, dict):
                raise StateFileError(STATE_PLACE, f"bookmark of {stream!r} is no object")
        super().load_state({"bookmarks": found})

    def end_if_told(self) -> None:
        """End with the state if a signal asked for it; to be called between two messages."""
        if self._told_to_stop is not None:
            self.state_writer.write_state(self.state)
            sys.exit(128 + self._told_to_stop)

    def _handle_termination(self, signum: int, frame: FrameType | None) -> None:
        """Let the sending end between two messages; a second signal ends at once."""
        if self._told_to_stop is not None:
            signal.signal(signum, signal.SIG_DFL)
            raise KeyboardInterrupt
        self._told_to_stop = signum

    def discover_streams(self) -> Sequence[PublishedStream]:
        """Offer the configured streams, all if none are named.

        Raises:
            TapSettingError: a stream is named that there is not.
        """
        offered = {one.stream.name: one for one in self.source.offered()}
        names = self.config.get("streams") or list(offered)
        for name in names:
            if name not in offered:
                known = ", ".join(offered) or "none"
                problem = f"there is no stream {name} (streams there: {known})"
                step = "Nothing was sent. Correct the name or the streams folder."
                raise TapSettingError("streams", problem, step)
        return [self.stream_class(self, offered[name], self.source) for name in names]
