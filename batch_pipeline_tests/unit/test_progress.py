"""What is told of a running job, and how tasks learn that they must end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from batch_pipeline.domain.item import FoundFile, Item, modified_at
from batch_pipeline.domain.location import to_uri
from batch_pipeline.domain.record_rules import LineageContext
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stream import Storage
from batch_pipeline.files.storage import FolderStorage
from batch_pipeline.spark.progress import TaskCount, Teller
from batch_pipeline.spark.stop_mark import StopCheck, StopMark, StoppedError
from batch_pipeline.spark.task import encode_items
from batch_pipeline.spark.task_values import TaskSpec
from batch_pipeline_tests.factories import stream


def ticking(*times: float) -> Callable[[], float]:
    """Make a clock that shows these times, one a look."""
    left = iter(times)
    return lambda: next(left)


def test_task_count_of_several_stages_follows_the_one_that_does_the_work() -> None:
    """A stage that only hands out the work has few tasks; one not yet there counts as none."""
    count = TaskCount(10)

    count.of_stages([(2, 2)])
    before = (count.done, count.total)
    count.of_stages([(2, 2), (10, 4)])

    assert before == (0, 10)
    assert (count.done, count.total) == (4, 10)


def test_teller_of_a_short_job_says_nothing() -> None:
    """In the first five seconds nobody wants to hear about it."""
    told: list[tuple[int, int]] = []
    teller = Teller(lambda done, total: told.append((done, total)), ticking(0, 1, 4.9))
    count = TaskCount(10)

    for done in (1, 9):
        count.done = done
        teller.look(count)

    assert told == []


def test_teller_of_a_long_job_speaks_every_few_seconds_and_only_of_news() -> None:
    """One line in five seconds at most, none when nothing has changed."""
    told: list[tuple[int, int]] = []
    clock = ticking(0, 6, 6, 8, 12, 12)
    teller = Teller(lambda done, total: told.append((done, total)), clock)
    count = TaskCount(10)

    for done in (1, 2, 1, 3):  # at 6, 8, (no look at the clock: nothing new), 12
        count.done = done
        teller.look(count)

    assert told == [(1, 10), (3, 10)]


@pytest.fixture
def mark(tmp_path: Path) -> StopMark:
    """The mark of one encode in an empty storage."""
    return StopMark.of(Storage(root=to_uri(tmp_path), prefix="p-"), "orders-1-2-a1", "0a0b")


def test_stop_check_of_a_marked_encode_ends_the_task(mark: StopMark) -> None:
    """The mark is looked for at once and then every half second, not for each chunk."""
    check = StopCheck(mark, ticking(0, 0, 0.4, 0.6, 0.6))
    check.check()
    mark.set()
    check.check()

    with pytest.raises(StoppedError):
        check.check()


def test_stop_check_without_a_mark_goes_on(mark: StopMark) -> None:
    """A cleared mark stops nobody, and a task need not have one."""
    mark.set()
    mark.clear()

    StopCheck(mark).check()
    StopCheck(None).check()


def test_stop_mark_in_storage_that_is_gone_says_that_it_could_not_be_set(tmp_path: Path) -> None:
    """The caller then has Spark kill the tasks."""
    gone = StopMark.of(Storage(root=to_uri(tmp_path / "gone")), "orders-1", "0a0b")

    assert gone.set() is False
    assert gone.is_set() is False
    gone.clear()


def test_stop_mark_left_behind_goes_with_the_files_of_its_attempt(
    mark: StopMark, tmp_path: Path
) -> None:
    """Its name starts like theirs, so whoever removes these removes it too."""
    mark.set()

    removed = FolderStorage(Storage(root=to_uri(tmp_path), prefix="p-")).remove_attempt(
        "orders-1-2-a1"
    )

    assert removed == 1
    assert list(tmp_path.iterdir()) == []


def test_task_of_an_encode_that_is_called_off_ends_without_files(
    mark: StopMark, tmp_path: Path
) -> None:
    """Each task looks for the mark before it opens its first file."""
    landed = tmp_path / "in.csv"
    landed.write_bytes(b"a\n1\n")
    root = tmp_path / "batches"
    root.mkdir()
    context = LineageContext(batch_key="1-2", attempt=1, started_at=modified_at(landed.stat()))
    spec = TaskSpec(
        number=0,
        stem="orders-1",
        stream=stream(storage=Storage(root=to_uri(root))),
        schema=RecordSchema.from_json([("a", "integer")]),
        items=(Item(id=1, file=FoundFile(location=to_uri(landed), size_bytes=4)),),
        context=context,
        stop_mark=mark,
    )
    mark.set()

    with pytest.raises(StoppedError):
        encode_items(spec, execution="00c0ffee")

    assert list(root.iterdir()) == []
