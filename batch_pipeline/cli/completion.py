"""The values that a shell completes, beside those that click knows."""

import os
import re
from contextlib import suppress
from pathlib import Path

VARIABLE = "_BATCH_PIPELINE_COMPLETE"  # by which a shell asks click
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def stream_names() -> list[str]:
    """Read the names of streams from their files, in the order of these; judges no file.

    Neither the stream's other keys nor the database is looked at, so that nobody waits.
    """
    import yaml

    from batch_pipeline.model.errors import SettingError

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        files = sorted(_streams_folder().glob("*/defs.yaml"))
    except (OSError, RuntimeError, SettingError):
        return []
    names = []
    for file in files:
        # Whoever presses a key is not told what is wrong with a file: `doctor` does that.
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError, yaml.YAMLError):
            name = loader(file.read_bytes()).get_single_data()["attributes"]["stream"]
            if _NAME.fullmatch(name):
                names.append(name)
    return names


def _streams_folder() -> Path:
    """Give the streams folder of the settings, which are read where it is not plain without them:
    reading them takes as long as all the rest.
    """
    named, here = os.environ.get("BATCH_PIPELINE_STREAMS"), Path.cwd() / "streams"
    if named:
        return Path(named).expanduser()
    if here.is_dir() and not os.environ.get("BATCH_PIPELINE_ENV_FILE"):
        return here
    from batch_pipeline.settings.environment import load_settings

    return load_settings(environment=os.environ).streams
