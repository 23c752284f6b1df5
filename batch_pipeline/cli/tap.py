"""The command `tap-batch-pipeline`: the Singer tap over the inventory of a home."""

import atexit
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property

from batch_pipeline.app import Pipeline
from batch_pipeline.cli.console import run_plugin
from batch_pipeline.config.stream_file import check_valid
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.singer.messages import Bookmark
from batch_pipeline.singer.tap import OfferedStream, PublishedTap

log = logging.getLogger(PublishedTap.name)


class BatchPipelineTap(PublishedTap):
    """Sends the published batches of a pipeline, each once, as BATCH or RECORD messages."""

    @cached_property
    def _pipeline(self) -> Pipeline:
        """The pipeline that the configuration or the environment names."""
        names = {"home": "home", "streams": "streams_folder", "inventory_conn": "inventory_conn"}
        given = {setting: self.config.get(name) for setting, name in names.items()}
        pipeline = Pipeline.from_environment(settings=given)
        atexit.register(pipeline.close)
        return pipeline

    def offered_streams(self) -> Sequence[OfferedStream]:
        """Return all streams of the folder with their newest schema.

        If the config names streams, the files of others may be invalid.

        Raises:
            StreamFileError, ConfigurationError: a stream file is not valid.
        """
        pipeline, named = self._pipeline, self.config.get("streams") or ()
        for name in named:
            check_valid(name, pipeline.stream_file_errors)
        streams = pipeline.usable_streams if named else pipeline.streams
        schemas = pipeline.database.schemas
        return [
            OfferedStream(stream=stream, schema=schemas.latest(stream.name)[1])
            for stream in streams.values()
        ]

    def published(
        self, stream: str, bookmark: Bookmark, *, backfills: bool
    ) -> Iterator[tuple[int, Manifest]]:
        """Read publish numbers and manifests of a stream's jobs, job by job in publish order."""
        manifests, numbers = self._pipeline.database.manifests, bookmark.numbers
        lost = manifests.count_removed_after(stream, numbers, backfills=backfills)
        if lost:
            text = "%s: published batches not sent because gc deleted their files: %d"
            log.warning(text, stream, lost)
        return manifests.published_after(stream, numbers, backfills=backfills, last=bookmark.last)


def main() -> None:
    """Run the tap; operator errors print one message, never a traceback."""
    run_plugin(BatchPipelineTap.cli, "Run it again with the last STATE to continue.")
