"""Generated records of 150 columns, in the shape of Singer's test tap for wide streams.

`id`, `rep_key` (a timestamp), then integer, float, UUID and timestamp columns in turn: about 6.2 kB
as a line of JSON.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

CHECKED = "attribute_003"  # the integer column that checks sum
COLUMNS = 150
_KINDS = ("integer", "float", "uuid", "timestamp")
_SEED = 20_261_121
_DIGITS = 10**15  # floats of 15 digits survive conversion to text exactly
_MICROSECONDS_OF_20_YEARS = 20 * 365 * 86_400 * 1_000_000
_START = 946_684_800_000_000  # 2000-01-01, in microseconds
_HEX = np.array([list(f"{byte:02x}".encode()) for byte in range(256)], np.uint8)
_HEX_PLACES = [place for place in range(36) if place not in (8, 13, 18, 23)]


def column_kinds(*, typed: bool = False) -> dict[str, str]:
    """Return columns in order as `integer`, `float`, `text` or, with `typed`, `timestamp`."""
    kinds = [_KINDS[place % len(_KINDS)] for place in range(COLUMNS - 2)]
    names = {f"attribute_{place:03}": kind for place, kind in enumerate(kinds, start=3)}
    texts = {"uuid": "text"} if typed else {"uuid": "text", "timestamp": "text"}
    all_kinds = {"id": "integer", "rep_key": "timestamp", **names}
    return {name: texts.get(kind, kind) for name, kind in all_kinds.items()}


def records(first_id: int, count: int, *, typed: bool = False) -> pa.RecordBatch:
    """Generate consecutive records, which are determined by the arguments."""
    random = np.random.default_rng([_SEED, first_id, count])
    arrays: list[pa.Array] = []
    for name, kind in column_kinds(typed=True).items():
        if name == "id":
            arrays.append(pa.array(np.arange(first_id, first_id + count)))
        elif kind == "integer":
            arrays.append(pa.array(random.integers(0, 2**31, count)))
        elif kind == "float":
            arrays.append(pa.array(random.integers(0, _DIGITS, count) / _DIGITS))
        elif kind == "timestamp":
            arrays.append(_timestamps(random, count, typed=typed))
        else:
            arrays.append(_uuids(random, count))
    return pa.RecordBatch.from_arrays(arrays, list(column_kinds()))


def _timestamps(random: np.random.Generator, count: int, *, typed: bool) -> pa.Array:
    microseconds = random.integers(0, _MICROSECONDS_OF_20_YEARS, count) + _START
    if typed:
        return pa.array(microseconds).cast(pa.timestamp("us", "UTC"))
    text = pa.array(microseconds).cast(pa.timestamp("us")).cast(pa.string())
    bytes_ = np.frombuffer(text.buffers()[2], np.uint8).reshape(count, 26).copy()
    bytes_[:, 10] = ord("T")
    zone = np.tile(np.frombuffer(b"+00:00", np.uint8), (count, 1))
    return _text(np.concatenate([bytes_, zone], axis=1))


def _uuids(random: np.random.Generator, count: int) -> pa.StringArray:
    bytes_ = np.frombuffer(random.bytes(16 * count), np.uint8).reshape(count, 16).copy()
    bytes_[:, 6] = bytes_[:, 6] & 0x0F | 0x40
    bytes_[:, 8] = bytes_[:, 8] & 0x3F | 0x80
    text = np.full((count, 36), ord("-"), np.uint8)
    text[:, _HEX_PLACES] = _HEX[bytes_].reshape(count, 32)
    return _text(text)


def _text(bytes_: npt.NDArray[np.uint8]) -> pa.StringArray:
    """Return one string per row of bytes, all of equal length."""
    count, width = bytes_.shape
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(bytes_.tobytes()))


def json_text(block: pa.RecordBatch) -> memoryview:
    """Return records as JSON lines."""
    parts: list[pa.Scalar | pa.Array] = []
    opening = "{"
    for name, column in zip(block.schema.names, block.columns, strict=True):
        mark = "" if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) else '"'
        parts += [pa.scalar(f'{opening}"{name}":{mark}'), column.cast(pa.string())]
        opening = f"{mark},"
    closing = opening.removesuffix(",") + "}\n"
    lines = pc.binary_join_element_wise(*parts, pa.scalar(closing), "")
    return memoryview(lines.buffers()[2])[: pc.sum(pc.binary_length(lines)).as_py()]
