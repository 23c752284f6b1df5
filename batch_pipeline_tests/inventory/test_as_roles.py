"""Inventory tests run again as a login that is planner and worker and has no search path.

Excluded are tests whose setup needs other rights, and tests that kill processes, which are slow and
do not depend on rights.
"""

from importlib import import_module

import pytest

from batch_pipeline_tests.inventory.logins import run, url_for_login

MODULES = (
    "inventory.test_planning",
    "inventory.test_attempts",
    "pipeline.test_reconcile",
    "inventory.test_job_control",
    "inventory.test_acquire",
    "inventory.test_late_arrivals",
)
EXCLUDED = {
    "test_batch_below_min_weight_waits_for_age_or_drain",  # changes an item's registration time
    "test_batch_without_items_cannot_be_split",  # deletes the items of a batch
    "test_acquire_matches_reference_cut",  # empties the inventory
    "test_batch_restarted_during_audit_is_left_to_next_audit",  # changes a batch
}

for _module in MODULES:
    _names = vars(import_module(f"batch_pipeline_tests.{_module}"))
    globals().update(
        {
            name: value
            for name, value in _names.items()
            if not name.startswith("_") and name not in EXCLUDED and "killed" not in name
        }
    )


@pytest.fixture
def database_url(granted_url: str) -> str:
    """URL of a fresh inventory for the login of a program that acquires.

    It may also create meta tables, which only the tests need.
    """
    run(granted_url, "GRANT CREATE ON SCHEMA public TO lib")
    return url_for_login(granted_url, "lib")
