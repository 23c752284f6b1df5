"""Sensor of stream files that changed or became invalid since the code location was loaded."""

from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from batch_pipeline.config.stream_file import invalid_files_error, load_valid_streams
from batch_pipeline.defs.names import STREAM_FILES_SENSOR
from batch_pipeline.model.stream import Automation, Stream

_INTERVAL_SECONDS = 60


def stream_files_sensor(
    folder: Path, loaded: Mapping[str, Stream], automation: Automation
) -> dg.SensorDefinition:
    """Build the sensor; its ticks fail while a file is invalid, with file, line and problem."""

    @dg.sensor(
        name=STREAM_FILES_SENSOR,
        minimum_interval_seconds=_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus(automation.value.upper()),
        description=f"Reads the stream files in {folder}; fails while one is invalid.",
    )
    def stream_files() -> dg.SkipReason:
        return dg.SkipReason(describe_file_changes(folder, loaded))

    return stream_files


def describe_file_changes(folder: Path, loaded: Mapping[str, Stream]) -> str:
    """Compare the stream files of a folder with the streams that were loaded from it.

    Raises:
        ConfigurationError: a file is invalid.
    """
    streams, problems = load_valid_streams(folder)
    if problems:
        raise invalid_files_error(problems)
    names = sorted({*streams, *loaded})
    changed = [name for name in names if streams.get(name) != loaded.get(name)]
    if not changed:
        return f"Streams without changes: {len(loaded)}."
    return f"Changed streams: {', '.join(changed)}. Reload the code location to apply the changes."
