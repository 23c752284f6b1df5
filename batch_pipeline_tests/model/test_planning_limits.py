"""The limits that are proposed for files and a machine."""

from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.planning import Limits, Machine, limits_for

MIB = 2**20
SMALL = Machine(cores=2, memory_bytes=8 * 2**30)


def limits(*sizes: int, machine: Machine = SMALL, growth: float = 1.0) -> tuple[int, int]:
    """Return the limits for some files, in MiB and items."""
    found = limits_for(sizes, machine, growth=growth)
    assert found.max_weight % MIB == 0
    return found.max_weight // MIB, found.max_count


def test_limits_grow_with_cores_and_not_above_the_memory() -> None:
    assert limits(MIB) == (256, 500)
    assert limits(MIB, machine=Machine(cores=8, memory_bytes=64 * 2**30))[0] == 1024
    assert limits(MIB, machine=Machine(cores=8, memory_bytes=1024 * MIB))[0] == 256


def test_limits_of_compressed_files_count_what_they_become() -> None:
    assert limits(MIB, growth=6.0)[0] == 64


def test_limits_take_most_of_heavy_files_in_batches_of_several() -> None:
    assert limits(*[400 * MIB] * 40)[0] == 512
    assert limits(*[MIB] * 39, 3000 * MIB)[0] == 256


def test_limits_of_a_long_past_keep_the_number_of_batches_down() -> None:
    assert limits(*[16 * MIB] * 2**20)[0] == 2048


def test_limits_of_tiny_files_hold_more_of_them() -> None:
    assert limits(*[1024] * 9)[1] == 1000
    assert limits(*[100 * MIB] * 9)[1] == 100


def test_limits_without_bytes_are_the_machine_s() -> None:
    assert limits(0, 0) == (256, 1000)


@given(
    st.lists(st.integers(0, 2**45), min_size=1, max_size=50),
    st.integers(1, 256),
    st.integers(2**20, 2**44),
    st.floats(1, 10),
)
def test_limits_are_always_ones_that_a_stream_takes(
    sizes: list[int], cores: int, memory: int, growth: float
) -> None:
    found = limits_for(sizes, Machine(cores=cores, memory_bytes=memory), growth=growth)
    assert isinstance(found, Limits)
    assert 64 * MIB <= found.max_weight <= 4096 * MIB
    assert 100 <= found.max_count <= 1000
