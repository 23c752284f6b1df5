"""What is kept of words for people, by the setting `keep_logs`: without it, everything."""

from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.upkeep.old_texts import Texts, forget_texts
from batch_pipeline.settings.pipeline import Pipeline


def forget_old_texts(pipeline: Pipeline, stream: Stream, *, dry_run: bool) -> Texts | None:
    """Remove old errors and logs of a stream; None where all are kept.

    Raises:
        PipelineError: the inventory cannot be asked, or refuses.
    """
    keep = pipeline.settings.keep_logs
    if keep is None:
        return None
    return forget_texts(pipeline.database.engine, stream.name, keep, dry_run=dry_run)
