"""Says in a phrase what is wrong with a parquet file, from what Arrow says about it."""

import pyarrow as pa

DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
_PHRASES = {
    "magic bytes not found": "is not a parquet file, or its end is missing",
    "minimum file footer": "is not a parquet file: it is too short",
    "file size is 0 bytes": "is empty",
    "encrypted": "is encrypted",
    "decrypt": "is encrypted",
    "crc checksum": "is damaged: a page does not match its checksum",
}
_LONGEST = 120


def damage_reason(error: BaseException) -> str:
    """Give the reason of a bad file; no path of it is named."""
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read ({(error.strerror or 'unknown reason').lower()})"
    if isinstance(error, MemoryError):
        return "takes more memory to read than there is"
    text = str(error)
    for mark, phrase in _PHRASES.items():
        if mark in text.lower():
            return phrase
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    shown = first if len(first) <= _LONGEST else f"{first[:_LONGEST]}…"
    if isinstance(error, pa.ArrowNotImplementedError):
        return f"uses something of parquet that is not supported ({shown})"
    return f"is damaged ({shown})"
