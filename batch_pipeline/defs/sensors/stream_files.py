"""Sensor of stream files that changed or became invalid since the definitions were loaded.

Nothing is loaded here: a reload of the code location takes the files as they then are.
"""

from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from batch_pipeline.config.stream_file import invalid_files_error, load_valid_streams
from batch_pipeline.defs.names import STREAM_FILES_SENSOR
from batch_pipeline.model.stream import Stream

_INTERVAL_SECONDS = 60


def stream_files_sensor(folder: Path, loaded: Mapping[str, Stream]) -> dg.SensorDefinition:
    """Fail while a file of the folder cannot be used, and tell when a reload would change streams.

    A failing tick is red in Dagster's pages and shows file, line and problem; nothing else stops.
    """

    @dg.sensor(
        name=STREAM_FILES_SENSOR,
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reads the stream files below {folder}; fails while one cannot be used.",
    )
    def stream_files() -> dg.SkipReason:
        return dg.SkipReason(describe_file_changes(folder, loaded))

    return stream_files


def describe_file_changes(folder: Path, loaded: Mapping[str, Stream]) -> str:
    """Compare the stream files of a folder with the streams that were loaded from it.

    Raises:
        ConfigurationError: a file cannot be used.
    """
    streams, problems = load_valid_streams(folder)
    if problems:
        raise invalid_files_error(tuple(problems))
    names = sorted({*streams, *loaded})
    changed = [name for name in names if streams.get(name) != loaded.get(name)]
    if not changed:
        return f"Streams that run as their files say: {len(loaded)}."
    return (
        f"Not as loaded any more: {', '.join(changed)}. Reload the code location to run the "
        f"streams as their files say."
    )
