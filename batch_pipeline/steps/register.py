"""Stations 1 and 2: what landed becomes items."""

from batch_pipeline.model.item import Registered
from batch_pipeline.model.progress import track
from batch_pipeline.ports import Cutter, Landing, Registry


def register(
    landing: Landing,
    registry: Registry,
    *,
    accept_changed: bool = False,
    cutter: Cutter | None = None,
) -> Registered:
    """Give every landed file an id; files that have one keep it. Safe to repeat and to interrupt.

    What the cutter finds too large for one item gets several, all at once.

    Raises:
        LandingUnavailableError: the landing cannot be listed.
    """
    found = track(landing.found_files(), "registering files")
    return registry.register(found, accept_changed=accept_changed, cutter=cutter)
