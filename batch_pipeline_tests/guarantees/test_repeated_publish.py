"""Publishing is repeated: any number of times, concurrently, and after a lost reply (G5)."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.model.batch import Attempt
from batch_pipeline.model.errors import RetryableError
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.stream import Storage
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import encoded, stream
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.lost_replies import losing_replies
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import claimed, everything, planned

MAX_PUBLISHES = 10

pytestmark = pytest.mark.guarantee("G5")


def write_manifest_file(storage: PartFileStorage, manifest: Manifest) -> tuple[bytes, int]:
    """Write a manifest file, and return its content and inode."""
    path = Path(to_path(storage.point_to(manifest)))
    return path.read_bytes(), path.stat().st_ino


def publish(database: Database, attempt: Attempt) -> Manifest:

    return database.attempts.publish(attempt, encoded(attempt.stem), stream())


@pytest.mark.parametrize("concurrently", [False, True], ids=["sequentially", "concurrently"])
def test_repeated_publish_creates_one_unchanged_manifest(
    database: Database, tmp_path: Path, figures: Figures, *, concurrently: bool, long_form: bool
) -> None:
    storage = PartFileStorage(Storage(root=to_uri(tmp_path / "batches")))
    storage.prepare()
    rounds = 20 if long_form else 1
    calls = 0
    batches = planned(database, MAX_PUBLISHES * rounds)
    for batch, times in zip(batches, [*range(1, MAX_PUBLISHES + 1)] * rounds, strict=True):
        with claimed(database, batch) as attempt:
            call = partial(publish, database, attempt)
            if concurrently:
                manifests = together(*[call] * times)
            else:
                manifests = [call() for _ in range(times)]
            rows = everything(database)
            last = call()
        assert last.generation == 1
        assert manifests == [last] * times
        assert everything(database) == rows
        assert len({write_manifest_file(storage, last) for _ in range(times)}) == 1
        calls += times + 1
    check_invariants(database)
    names = list((tmp_path / "batches" / "manifests").iterdir())
    assert len(names) == MAX_PUBLISHES * rounds
    figures(published_again=calls - len(names), manifests=len(names), changed=0)


def test_publish_with_lost_reply_can_be_repeated(
    database: Database, database_url: str, figures: Figures
) -> None:
    lost = 0
    with losing_replies(database_url) as (url, replies):
        flaky = open_database(url, migrated=None)
        for point, batch in enumerate(planned(database, 40), 1):
            with claimed(flaky, batch) as attempt:
                replies.arm(point)
                try:
                    publish(flaky, attempt)
                except RetryableError:
                    assert replies.disarm()
                    lost += 1
                else:
                    if not replies.disarm():
                        break
                again = publish(flaky, attempt)
                assert again.generation == 1
                rows: list[Any] = everything(database)
                assert publish(database, attempt) == again
                assert everything(database) == rows
        flaky.close()
    assert lost > 3
    check_invariants(database)
    figures(replies_lost=lost)
