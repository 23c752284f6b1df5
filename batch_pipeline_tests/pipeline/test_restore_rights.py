"""Privileges for detecting and resolving an inventory that is older than its storage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_pipeline.model.errors import OLDER, InventoryOlderError
from batch_pipeline.pipeline.reconcile import ensure_inventory_current
from batch_pipeline_tests.guarantees.restorable_stream import RestorableStream, open_stream
from batch_pipeline_tests.inventory.logins import url_for_login


@pytest.fixture
def restored(tmp_path: Path, server_url: str, granted_url: str) -> Iterator[RestorableStream]:
    """A stream restored from a backup without its last two batches; its login can plan and work."""
    url = url_for_login(granted_url, "lib")
    with open_stream(tmp_path, server_url, url, str(tmp_path / "batches")) as opened:
        opened.land(1, 2)
        opened.publish()
        backup = opened.back_up()
        opened.land(3, 6)
        opened.publish()
        opened.restore(backup)
        yield opened


def reconnect_as(restored: RestorableStream, login: str) -> RestorableStream:
    """Reconnect to the inventory as another login."""
    restored.close()
    url = restored.database_url.replace("//lib@", f"//{login}@")
    restored.environment["BATCH_PIPELINE_INVENTORY_CONN"] = url
    return restored


def test_worker_login_detects_an_older_inventory_but_cannot_pause(
    restored: RestorableStream,
) -> None:
    """The login that plans and works can."""
    for login, is_paused in (("wanda", False), ("lib", True)):
        stream = reconnect_as(restored, login)
        with pytest.raises(InventoryOlderError):
            ensure_inventory_current(stream.database, stream.stream)
        reason = stream.database.jobs.paused("orders")
        assert (reason or "").startswith(OLDER) is is_paused
    assert restored.discard().manifests == 2
    assert len(restored.publish()) == 2
    assert restored.database.jobs.paused("orders") is None
    worker = reconnect_as(restored, "wanda")
    ensure_inventory_current(worker.database, worker.stream)
