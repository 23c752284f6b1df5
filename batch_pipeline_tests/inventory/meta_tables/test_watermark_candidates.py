"""How candidates become a ceiling, against a world of transactions small enough to know fully."""

from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.inventory.meta_tables.watermarks import (
    MAX_CANDIDATES,
    Candidate,
    Candidates,
    InMemoryCandidates,
    advance,
    load_candidates,
)
from batch_pipeline.model.stream import Strategy

NOTHING = Candidates(strategy=Strategy.LOCKS, epoch="1")


def look(state: Candidates, highest: int | None, *holders: str) -> Candidates:
    """One look that found these."""
    return advance(state, highest, frozenset(holders))


def test_idle_table_is_settled_at_once() -> None:
    """Expect the highest id where nobody holds a lock."""
    assert look(NOTHING, 7).released == 7


def test_empty_table_has_no_ceiling() -> None:
    """Expect nothing to be known, whoever writes."""
    assert look(NOTHING, None, "3/1") == NOTHING


def test_holder_of_then_keeps_the_ceiling_down_until_it_is_gone() -> None:
    """Expect those who held the lock at the look to count, and later ones not."""
    state = look(NOTHING, 7, "3/1")
    assert state.released is None
    state = look(state, 9, "3/1", "4/1")
    assert state.released is None
    assert look(state, 9, "4/1").released == 7
    assert look(state, 9, "5/1").released == 9


def test_ever_new_writers_do_not_keep_the_ceiling_down() -> None:
    """Expect the ceiling to follow one look behind a table that is never idle."""
    state = NOTHING
    for number in range(1, 50):
        state = look(state, number, f"3/{number}")
        assert state.released == (number - 1 or None)


def test_recovered_prepared_transaction_holds_everything() -> None:
    """Expect a holder whose old identity a crash has erased to be one of every candidate's."""
    state = look(NOTHING, 7, "3/1")
    state = look(state, 8, "-1/977")
    assert state.released is None
    assert look(state, 8).released == 8


def test_ids_that_fall_take_the_ceiling_with_them() -> None:
    """Expect a table that was emptied, or whose ids start again, to have no old ceiling."""
    state = look(look(NOTHING, 100), 120, "3/1")
    assert look(state, 5, "3/2") == Candidates(
        strategy=Strategy.LOCKS, epoch="1", waiting=(Candidate(5, frozenset({"3/2"})),)
    )
    assert look(state, None).released is None


def test_candidates_stay_few_behind_a_long_transaction() -> None:
    """Expect candidates that wait for the same ones to become one, the highest."""
    state = NOTHING
    for number in range(1, 1_000):
        state = look(state, number, "3/1", "4/1")
    assert [one.id for one in state.waiting] == [999]


def test_candidates_stay_few_behind_ever_more_transactions() -> None:
    """Expect a bound on what is remembered, and the highest candidate never to be dropped."""
    state, holders = NOTHING, []
    for number in range(1, 1_000):
        holders.append(f"{number}/1")
        state = look(state, number, *holders)
        assert len(state.waiting) <= MAX_CANDIDATES
        assert state.waiting[-1].id == number
    assert look(state, 999).released == 999


def test_state_of_another_epoch_or_strategy_counts_as_none() -> None:
    """Expect nothing to be believed of another server, table or way to look."""
    store = InMemoryCandidates()
    store.save("ops.files", look(NOTHING, 7))
    assert load_candidates(store, "ops.files", Strategy.LOCKS, "1").released == 7
    assert load_candidates(store, "ops.files", Strategy.LOCKS, "2").released is None
    assert load_candidates(store, "ops.files", Strategy.SETTLE, "1").released is None
    assert load_candidates(store, "ops.other", Strategy.LOCKS, "1").released is None


class World:
    """Transactions that lock, take ids and end, as Postgres would run them."""

    def __init__(self) -> None:
        self.next_id = 1
        self.started = 0
        self.running: dict[str, list[int]] = {}
        self.visible: set[int] = set()

    def begin(self) -> None:
        """Lock the table and take an id."""
        self.started += 1
        self.running[f"1/{self.started}"] = []
        self.insert(self.started)

    def insert(self, choice: int) -> None:
        """Take one more id in a transaction."""
        if self.running:
            list(self.running.values())[choice % len(self.running)].append(self.next_id)
            self.next_id += 1

    def end(self, choice: int, *, commit: bool) -> None:
        """Make a transaction's ids visible, or waste them."""
        if self.running:
            ids = self.running.pop(list(self.running)[choice % len(self.running)])
            self.visible |= set(ids) if commit else set()


moves = st.tuples(
    st.sampled_from(["begin", "insert", "commit", "rollback", "look", "look"]), st.integers(0, 50)
)


@given(st.lists(moves, max_size=60))
def test_no_id_below_a_released_ceiling_is_still_to_come(schedule: list[tuple[str, int]]) -> None:
    """Expect, whatever the order of events, that nobody holds an id below the ceiling."""
    world, state, highest, looking = World(), NOTHING, None, False
    for move, choice in schedule:
        if move == "begin":
            world.begin()
        elif move == "insert":
            world.insert(choice)
        elif move in {"commit", "rollback"}:
            world.end(choice, commit=move == "commit")
        elif not looking:
            highest, looking = max(world.visible, default=None), True  # the first half of a look
        else:
            before, looking = state.released or 0, False
            state = look(state, highest, *world.running)  # and the second, some moves later
            assert (state.released or 0) >= before
        held = [uid for ids in world.running.values() for uid in ids]
        assert all(uid > (state.released or 0) for uid in held)


@given(st.lists(moves, max_size=60))
def test_ceiling_reaches_the_highest_id_when_all_have_ended(
    schedule: list[tuple[str, int]],
) -> None:
    """Expect one look at an idle table to release everything."""
    world, state = World(), NOTHING
    for move, choice in schedule:
        if move == "look":
            state = look(state, max(world.visible, default=None), *world.running)
        elif move == "begin":
            world.begin()
        else:
            world.end(choice, commit=move != "rollback")
    while world.running:
        world.end(0, commit=True)
    highest = max(world.visible, default=None)
    assert look(state, highest).released == highest
