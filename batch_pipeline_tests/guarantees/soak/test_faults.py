"""The schedule of the faults of a soak."""

from batch_pipeline_tests.acceptance.live_dev import SERVICES, WORKERS
from batch_pipeline_tests.guarantees.soak.faults import schedule


def test_fault_schedule_hits_services_first_and_ends_before_last_tenth() -> None:
    due = [*schedule(1_800, every_seconds=20, services_until_seconds=600, seed=8)]
    assert {kind for seconds, kind in due if seconds < 604} == {*SERVICES, *WORKERS}
    assert {kind for seconds, kind in due if seconds > 604} == {*WORKERS}
    assert 1_500 < due[-1][0] < 1_624
