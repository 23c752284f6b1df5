"""Publishing that is repeated: any number of times, by many at once, after a lost reply (G5)."""

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

MOST = 10

pytestmark = pytest.mark.guarantee("G5")


def pointed(storage: PartFileStorage, manifest: Manifest) -> tuple[bytes, int]:
    """Write a manifest file, and give its bytes and which file of the disk it is."""
    path = Path(to_path(storage.point_to(manifest)))
    return path.read_bytes(), path.stat().st_ino


def publish(database: Database, attempt: Attempt) -> Manifest:
    """Publish an attempt with what it wrote."""
    return database.attempts.publish(attempt, encoded(attempt.stem), stream())


@pytest.mark.parametrize("by_many", [False, True], ids=["one after the other", "all at once"])
def test_publish_called_one_to_ten_times_gives_one_manifest_of_the_same_bytes(
    database: Database, tmp_path: Path, figures: Figures, *, by_many: bool, long_form: bool
) -> None:
    storage = PartFileStorage(Storage(root=to_uri(tmp_path / "batches")))
    storage.prepare()
    rounds = 20 if long_form else 1
    calls = 0
    batches = planned(database, MOST * rounds)
    for one, times in zip(batches, [*range(1, MOST + 1)] * rounds, strict=True):
        with claimed(database, one) as attempt:
            call = partial(publish, database, attempt)
            found = together(*[call] * times) if by_many else [call() for _ in range(times)]
            rows = everything(database)
            last = call()
        assert last.generation == 1
        assert found == [last] * times
        assert everything(database) == rows
        assert len({pointed(storage, last) for _ in range(times)}) == 1
        calls += times + 1
    check_invariants(database)
    names = list((tmp_path / "batches" / "manifests").iterdir())
    assert len(names) == MOST * rounds
    figures(published_again=calls - len(names), manifests=len(names), changed=0)


def test_publish_whose_reply_is_lost_is_found_by_its_repetition(
    database: Database, database_url: str, figures: Figures
) -> None:
    lost = 0
    with losing_replies(database_url) as (url, replies):
        cut_off = open_database(url, migrated=None)
        for point, one in enumerate(planned(database, 40), 1):
            with claimed(cut_off, one) as attempt:
                replies.arm(point)
                try:
                    publish(cut_off, attempt)
                except RetryableError:
                    assert replies.disarm()
                    lost += 1
                else:
                    if not replies.disarm():
                        break
                again = publish(cut_off, attempt)
                assert again.generation == 1
                rows: list[Any] = everything(database)
                assert publish(database, attempt) == again
                assert everything(database) == rows
        cut_off.close()
    assert lost > 3
    check_invariants(database)
    figures(replies_lost=lost)
