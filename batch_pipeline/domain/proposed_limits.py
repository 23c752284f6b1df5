"""Limits of a batch for files of given sizes on a given machine: arithmetic, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from batch_pipeline.domain.planning import Limits

_MIB = 2**20
_LEAST = 64 * _MIB
_MOST = 4096 * _MIB
_WORK_OF_A_CORE = 128 * _MIB  # four tasks: the last one does not hold up the others for long
_BATCHES = 10_000  # Dagster's pages stay quick, and it takes years to have too many partitions
_COUNTS = (100, 200, 500, 1000)  # a file costs a look and an opening, whatever its size


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the limits are for: cores, and memory in bytes."""

    cores: int
    memory_bytes: int


def limits_for(sizes: Sequence[int], machine: Machine, *, growth: float = 1.0) -> Limits:
    """Give limits for files of these sizes, in bytes; `growth` is that of decompressing them.

    A batch has work for all cores, decompressed it is at most a quarter of the memory, and 19 of 20
    files are lighter than it; the files make at most some 10,000 batches. Weights are powers of
    two from 64 MiB to 4 GiB.
    """
    work = min(machine.cores * _WORK_OF_A_CORE, machine.memory_bytes // 4)
    ordered = sorted(sizes)
    usual = ordered[len(ordered) // 2] if ordered else 0
    heavy = ordered[len(ordered) * 19 // 20] if ordered else 0
    wanted = max(work / max(growth, 1.0), heavy, sum(ordered) / _BATCHES)
    weight = _LEAST
    while weight < min(wanted, _MOST):
        weight *= 2
    fitting = weight // max(usual, 1)
    count = next((one for one in _COUNTS if one >= fitting), _COUNTS[-1])
    return Limits(max_weight=weight, max_count=count)
