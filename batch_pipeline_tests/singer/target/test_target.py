"""Which STATE a target may print, as a rule of its own."""

from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.singer.target.target import PendingStates

_EVENTS = st.lists(
    st.tuples(st.sampled_from(["record", "land", "state"]), st.sampled_from("abc")), max_size=40
)


def test_state_behind_a_pending_record_is_held_back() -> None:
    states = PendingStates()
    states.receive(1, "first", pending=())
    states.receive(3, "second", pending=(2,))
    assert states.printable(2) == "first"
    assert states.printable(2) is None
    assert states.printable(None) == "second"


@given(_EVENTS)
def test_states_are_those_of_a_rule_that_forgets_none(events: list[tuple[str, str]]) -> None:
    states, kept = PendingStates(), list[int]()
    pending: dict[str, int] = {}
    for line, (what, stream) in enumerate(events, start=1):
        if what == "record":
            pending.setdefault(stream, line)
        elif what == "land":
            pending.pop(stream, None)
        else:
            kept.append(line)
            states.receive(line, str(line), pending=pending.values())
            assert len(states) <= len(pending) + 1
        oldest = min(pending.values(), default=None)
        free = [at for at in kept if oldest is None or at < oldest]
        kept = [at for at in kept if at not in free]
        assert states.printable(oldest) == (str(free[-1]) if free else None)
