"""Who may notice, and who may settle, that an inventory is older than its storage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_pipeline.model.errors import OLDER, InventoryOlderError
from batch_pipeline.pipeline.restore_check import (
    ensure_inventory_current,
)
from batch_pipeline_tests.guarantees.restorable_stream import RestorableStream, open_stream
from batch_pipeline_tests.inventory.logins import url_for_login


@pytest.fixture
def restored(tmp_path: Path, server_url: str, granted_url: str) -> Iterator[RestorableStream]:
    """The stream of a login that plans and works, whose backup lacks two of three batches."""
    url = url_for_login(granted_url, "lib")
    with open_stream(tmp_path, server_url, url, str(tmp_path / "batches")) as opened:
        opened.land(1, 2)
        opened.publish()
        backup = opened.back_up()
        opened.land(3, 6)
        opened.publish()
        opened.restore(backup)
        yield opened


def by(restored: RestorableStream, login: str) -> RestorableStream:
    """Continue as another login."""
    restored.close()
    url = restored.database_url.replace("//lib@", f"//{login}@")
    restored.environment["BATCH_PIPELINE_INVENTORY_CONN"] = url
    return restored


def test_planner_and_worker_together_discard(restored: RestorableStream) -> None:
    """Expect rights to plan and to work to be enough, and to go on afterwards."""
    with pytest.raises(InventoryOlderError):
        restored.publish()
    assert restored.discard().manifests == 2
    assert len(restored.publish()) == 2
    assert restored.database.jobs.paused("orders") is None


def test_worker_alone_notices_and_cannot_pause(restored: RestorableStream) -> None:
    """Expect the same message, a job that goes unpaused, and no trouble where all is well."""
    for login, is_paused in (("wanda", False), ("lib", True)):
        somebody = by(restored, login)
        with pytest.raises(InventoryOlderError):
            ensure_inventory_current(somebody.database, somebody.stream)
        paused = somebody.database.jobs.paused("orders")
        assert (paused or "").startswith(OLDER) is is_paused
    restored.discard()
    wanda = by(restored, "wanda")
    ensure_inventory_current(wanda.database, wanda.stream)
