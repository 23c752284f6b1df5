"""Tests of the inventory once more, as a login that is planner and worker and has no search path.

Left out are those whose own preparations take a right of somebody else, and those of kills, which
are slow and have nothing to do with rights.
"""

from importlib import import_module

import pytest

from batch_pipeline_tests.inventory.logins import run, url_of

MODULES = (
    "inventory.test_planning",
    "inventory.test_attempts",
    "pipeline.test_reconcile",
    "inventory.test_job_control",
    "inventory.test_splitting",
    "inventory.test_acquire",
    "inventory.test_late_arrivals",
)
LEFT_OUT = {
    "test_plan_light_rest_waits_until_it_is_old_or_drained",  # makes an item older than it is
    "test_bisect_of_a_batch_without_items_is_refused",  # deletes the items of a batch
    "test_acquire_gives_what_cutting_gives",  # empties the inventory
    "test_batch_that_starts_again_during_the_audit_is_left_to_the_next_one",  # changes a batch
}

for _module in MODULES:
    _names = vars(import_module(f"batch_pipeline_tests.{_module}"))
    globals().update(
        {
            name: value
            for name, value in _names.items()
            if not name.startswith("_") and name not in LEFT_OUT and "killed" not in name
        }
    )


@pytest.fixture
def database_url(granted_url: str) -> str:
    """URL of a fresh inventory for the login of a program that acquires.

    It may make meta tables of its own, which is for the tests alone.
    """
    run(granted_url, "GRANT CREATE ON SCHEMA public TO lib")
    return url_of(granted_url, "lib")
