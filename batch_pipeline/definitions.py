"""What Dagster loads in this checkout and in `dev`: the streams folder, and nothing else.

A stream file that cannot be used is logged and left out; the other streams keep loading.
"""

import os

import dagster as dg

from batch_pipeline.config.environment import load_settings
from batch_pipeline.defs.build import build_definitions


@dg.definitions
def defs() -> dg.Definitions:
    """Build the definitions of all streams in the streams folder."""
    return build_definitions(load_settings(environment=os.environ).streams)
