"""Loads what is published of a stream into its targets: the one place that knows the loaders.

What a load is and how it is recorded is said in `steps.load`; nothing is opened before it is used.
"""

from collections.abc import Collection, Iterator
from contextlib import closing

from batch_pipeline.model.load import MessageMode, PostgresTarget, SingerTarget, Target
from batch_pipeline.model.stream import Stream
from batch_pipeline.ports import Loader
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.settings.restored import check_not_held
from batch_pipeline.steps.load import Dock, Look, Outcome, load
from batch_pipeline.storage.verification import content_problem, problem_before_reading


def load_due(
    pipeline: Pipeline,
    stream: Stream,
    target: Target,
    *,
    run_id: str,
    only: Collection[str] | None = None,
) -> Iterator[Outcome]:
    """Load what is due of a stream into a target; gives each generation when it is settled.

    `only` are names of batches; None takes all.

    Raises:
        PipelineError: no more of it can be loaded now; what was settled before stays so.
    """
    check_not_held(pipeline, stream)
    with closing(loader_of(pipeline, stream, target)) as loader:
        yield from load(
            Dock(
                stream=stream,
                target=target.name,
                loads=pipeline.database.loads,
                loader=loader,
                look=_look(target),
                run_id=run_id,
                in_order=target.keeps_last and bool(stream.message_keys),
                only=only,
            )
        )


def _look(target: Target) -> Look:
    """Give the look that makes sure of files' bytes, unless the loader itself does."""
    if isinstance(target, SingerTarget) and target.messages is not MessageMode.RECORD:
        return content_problem
    return problem_before_reading


def loader_of(pipeline: Pipeline, stream: Stream, target: Target) -> Loader:
    """Give what brings batches of a stream into a target; to be closed after use.

    Raises:
        SettingError: the variable that names the target's database is not set.
    """
    if isinstance(target, PostgresTarget):
        from batch_pipeline.load.postgres import PostgresLoader

        key = f"targets.{target.name}.postgres.conn"
        return PostgresLoader(target, pipeline.named_url(stream, target.conn, key))
    if not isinstance(target, SingerTarget):
        raise TypeError(type(target))
    from batch_pipeline.load.singer_loader import SingerLoader

    return SingerLoader(stream=stream.name, target=target, environment=pipeline.environment)
