"""The Dagster job that rolls old partitions of a stream up into wider ones, from the Launchpad."""

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from batch_pipeline.defs.names import ROLL_UP_JOB, batches_key
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.rolled_up import plan_roll_up, roll_up
from batch_pipeline.domain.errors import PipelineError, UnknownStreamError
from batch_pipeline.domain.roll_up import DEFAULT_WIDTH, RollUp
from batch_pipeline.domain.stream import Stream
from batch_pipeline.settings.times import parse_time


class RollUpConfig(dg.Config):
    """What to roll up: state keep, or before."""

    stream: str = Field(description="Name of the stream.")
    keep: int | None = Field(None, description="All but the newest batches: how many stay.")
    before: str | None = Field(None, description="Published before this time (ISO 8601).")
    width: int = Field(DEFAULT_WIDTH, description="So many batches become one partition.")
    dry_run: bool = Field(True, description="Only tell what it would be; change nothing.")  # noqa: FBT003 - pydantic's way to write a default

    def wish(self) -> RollUp:
        """Give the words of the request.

        Raises:
            InvalidValueError: it states both or neither, or nonsense.
        """
        before = None if self.before is None else parse_time(self.before, name="before")
        return RollUp(keep=self.keep, before=before, width=self.width)


def roll_up_job(streams: Sequence[Stream]) -> dg.JobDefinition:
    """Build the Dagster job for a set of streams."""
    by_name = {stream.name: stream for stream in streams}

    @dg.op(name="roll_up_or_tell", out=dg.Out(dg.Nothing))
    def roll_up_or_tell(
        context: dg.OpExecutionContext, config: RollUpConfig, pipeline: PipelineResource
    ) -> None:
        parts = pipeline.pipeline
        try:
            stream = by_name.get(config.stream)
            if stream is None:
                place = str(parts.settings.streams)
                raise UnknownStreamError(config.stream, tuple(by_name), place)
            found = plan_roll_up(parts.database, stream, context.instance, config.wish())
            if not config.dry_run:
                roll_up(context.instance, stream, found)
        except PipelineError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        would = "that would go" if config.dry_run else "gone"
        summary = (
            f"{stream.name}: partitions {would}: {len(found.narrow)}, wider ones in their place: "
            f"{len(found.wide)}; left: {found.left} of {found.partitions}."
        )
        context.log.info(summary)
        context.add_output_metadata(
            {
                "asset": dg.MetadataValue.asset(batches_key(stream)),
                "partitions": found.partitions,
                "partitions_left": found.left,
                "wide_partitions": len(found.wide),
                "dry_run": config.dry_run,
            }
        )

    @dg.job(
        name=ROLL_UP_JOB,
        description=(
            "Makes few wide partitions of many old ones, so that an asset stays below 100,000. Run "
            "it with dry_run first. Batches, manifests and history stay as they are."
        ),
    )
    def roll_up_partitions() -> None:
        roll_up_or_tell()

    return roll_up_partitions
