"""Definitions that Dagster loads in this checkout and in `dev`: those of the streams folder.

An invalid stream file is logged and skipped; the other streams load. Sensors and schedules
run by default. Each run has its own process, which is a fork in `dev`.
"""

import os

import dagster as dg

from batch_pipeline.config.environment import load_settings
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.instance.private_api import FORK_RUNS, fork_runs
from batch_pipeline.model.stream import Automation


@dg.definitions
def defs() -> dg.Definitions:
    """Build the definitions of all streams in the streams folder."""
    streams = load_settings(environment=os.environ).streams
    executor = dg.Definitions(executor=dg.in_process_executor)
    return dg.Definitions.merge(executor, build_definitions(streams, automation=Automation.RUNNING))


if FORK_RUNS in os.environ:
    fork_runs()
