"""The tap as a Singer SDK plugin: name, configuration, capabilities and streams.

Subclasses of `PublishedTap` implement `open_source`.
"""

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

from batch_pipeline.singer.bookmarks import parse_bookmarks, state_file_unusable
from batch_pipeline.singer.tap.settings import (
    CONFIG_JSON_SCHEMA,
    PublishedSource,
    check_settings,
    unusable_setting,
)
from batch_pipeline.singer.tap.stream import STATE_SOURCE, LineWriter, PublishedStream


class PublishedTap(Tap):
    """A tap that sends published batches, each once, as BATCH or RECORD messages."""

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
    _stop_signal: int | None = None

    @classmethod
    def append_builtin_config(cls, config_jsonschema: dict[str, Any]) -> None:
        """Add no SDK settings: stream maps and flattening belong to stream files."""

    def open_source(self) -> PublishedSource:
        """Return the source of streams and manifests; called once per tap."""
        raise NotImplementedError

    @cached_property
    def source(self) -> PublishedSource:
        """The source of streams and manifests."""
        return self.open_source()

    def setup_mapper(self) -> None:
        """Set up the SDK's mapper after rejecting settings that map records."""
        check_settings(self.config)
        super().setup_mapper()

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the bookmarks of a STATE value, or of a whole STATE message.

        Raises:
            ConfigurationError: a state that is not empty has no bookmarks, or one is not an object.
        """
        written = parse_bookmarks(state, path=STATE_SOURCE)
        bookmarks = {stream: value for stream, value in written.items() if value is not None}
        for stream, value in bookmarks.items():
            if not isinstance(value, dict):
                raise state_file_unusable(STATE_SOURCE, f"bookmark of {stream!r} is not an object")
        super().load_state({"bookmarks": bookmarks})

    def exit_if_stopped(self) -> None:
        """Write the state and exit if a signal arrived; call it between two messages."""
        if self._stop_signal is not None:
            self.state_writer.write_state(self.state)
            sys.exit(128 + self._stop_signal)

    def _handle_termination(self, signum: int, frame: FrameType | None) -> None:
        """Request an exit between two messages; a second signal exits immediately."""
        if self._stop_signal is not None:
            signal.signal(signum, signal.SIG_DFL)
            raise KeyboardInterrupt
        self._stop_signal = signum

    def discover_streams(self) -> Sequence[PublishedStream]:
        """Return the configured streams, or all of them if none are named.

        Raises:
            ConfigurationError: a named stream does not exist.
        """
        offered = {offer.stream.name: offer for offer in self.source.offered_streams()}
        names = self.config.get("streams") or list(offered)
        for name in names:
            if name not in offered:
                known = ", ".join(offered) or "none"
                problem = f"there is no stream {name} (streams there: {known})"
                step = "Nothing was sent. Correct the name or the streams folder."
                raise unusable_setting("streams", problem, step)
        return [self.stream_class(self, offered[name], self.source) for name in names]
