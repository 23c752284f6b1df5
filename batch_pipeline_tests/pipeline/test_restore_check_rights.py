"""Who may notice, and who may settle, that an inventory is older than its storage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_pipeline.model.manifest_file import HELD, InventoryOlderError
from batch_pipeline.pipeline.restore_check import (
    discard_unknown_manifests,
    ensure_inventory_current,
)
from batch_pipeline_tests.factories import NOON
from batch_pipeline_tests.guarantees.restorable_stream import Site, open_site
from batch_pipeline_tests.inventory.logins import url_of


@pytest.fixture
def site(tmp_path: Path, server_url: str, granted_url: str) -> Iterator[Site]:
    """The stream of a login that plans and works, whose backup lacks two of three batches."""
    url = url_of(granted_url, "lib")
    with open_site(tmp_path, server_url, url, str(tmp_path / "batches")) as opened:
        opened.land(1, 2)
        opened.work()
        backup = opened.back_up()
        opened.land(3, 6)
        opened.work()
        opened.restore(backup)
        yield opened


def by(site: Site, login: str) -> Site:
    """Let another login go on."""
    site.close()
    url = site.database_url.replace("//lib@", f"//{login}@")
    site.environment["BATCH_PIPELINE_INVENTORY_CONN"] = url
    return site


def test_planner_and_worker_together_discard(site: Site) -> None:
    """Expect rights to plan and to work to be enough, and to go on afterwards."""
    with pytest.raises(InventoryOlderError):
        site.work()
    assert (
        discard_unknown_manifests(
            site.pipeline.database, site.stream, now=NOON, dry_run=False
        ).manifests
        == 2
    )
    assert len(site.work()) == 2
    assert site.database.jobs.paused("orders") is None


def test_worker_alone_notices_and_cannot_pause(site: Site) -> None:
    """Expect the same message, a job that goes unpaused, and no trouble where all is well."""
    for login, is_paused in (("wanda", False), ("lib", True)):
        somebody = by(site, login)
        with pytest.raises(InventoryOlderError):
            ensure_inventory_current(somebody.pipeline.database, somebody.stream)
        paused = somebody.database.jobs.paused("orders")
        assert (paused or "").startswith(HELD) is is_paused
    discard_unknown_manifests(site.pipeline.database, site.stream, now=NOON, dry_run=False)
    wanda = by(site, "wanda")
    ensure_inventory_current(wanda.pipeline.database, wanda.stream)
