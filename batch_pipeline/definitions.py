"""What Dagster loads: wiring only.

A stream file that cannot be used is logged and left out; the other streams keep loading.
"""

import logging
import os

import dagster as dg

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.settings.environment import load_settings
from batch_pipeline.settings.stream_file import load_streams_tolerantly


@dg.definitions
def defs() -> dg.Definitions:
    """Build the definitions of all streams in the streams folder."""
    settings = load_settings(environment=os.environ)
    streams, problems = load_streams_tolerantly(settings.streams)
    for problem in problems:
        logging.getLogger("batch_pipeline").error("%s", problem)
    return build_definitions(streams.values())
