"""How large values become that Arrow holds as places in a dictionary. None is taken out of it."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

_LONG = (at.is_string, at.is_large_string, at.is_binary, at.is_large_binary)  # values of any length


def decoded_bytes(batch: pa.RecordBatch) -> int:
    """Give the bytes of a batch whose values stand one behind the other, each as often as it is."""
    return sum(_bytes_of(column) for column in batch.columns)


def _bytes_of(array: pa.Array) -> int:
    size = int(array.nbytes)
    kind = array.type
    if at.is_dictionary(kind):
        values = array.dictionary
        if any(is_one(values.type) for is_one in _LONG):
            places = pc.take(pc.binary_length(values), array.indices)
            size += pc.sum(places, min_count=0).as_py()
    elif at.is_struct(kind):
        size += sum(_bytes_of(part) for part in array.flatten())
    elif at.is_list(kind) or at.is_large_list(kind) or at.is_fixed_size_list(kind):
        size += _bytes_of(array.flatten())
    elif at.is_map(kind):
        size += _bytes_of(array.keys) + _bytes_of(array.items)
    return size
