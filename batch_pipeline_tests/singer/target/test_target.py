"""STATEs that a target may print."""

from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.singer.target.target import PendingStates

_EVENTS = st.lists(
    st.tuples(st.sampled_from(["record", "land", "state"]), st.sampled_from("abc")), max_size=40
)


@given(_EVENTS)
def test_printable_states_equal_those_of_a_naive_model(events: list[tuple[str, str]]) -> None:
    states, received = PendingStates(), list[int]()
    pending: dict[str, int] = {}
    for line, (event, stream) in enumerate(events, start=1):
        if event == "record":
            pending.setdefault(stream, line)
        elif event == "land":
            pending.pop(stream, None)
        else:
            received.append(line)
            states.receive(line, str(line), pending=pending.values())
            assert len(states) <= len(pending) + 1
        oldest = min(pending.values(), default=None)
        printable = [at for at in received if oldest is None or at < oldest]
        received = [at for at in received if at not in printable]
        assert states.printable(oldest) == (str(printable[-1]) if printable else None)
