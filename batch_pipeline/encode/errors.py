"""Errors raised while reading source files, and the format of reasons in error messages."""

_MAX_REASON = 1_000  # characters


class DecodeError(Exception):
    """Bytes cannot be decompressed, or are not valid in their charset; the message says why."""


class TaskInputError(Exception):
    """A task cannot use what it read; the message says why.

    Either a slice of a csv file has a malformed record or a quote that breaks the rules, so that
    the file must be read in one piece, or a transformed record cannot be written.
    """


def escape_unprintable(text: str) -> str:
    """Return a text with line ends and other unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def format_reason(text: str) -> str:
    """Return a reason as one printable line; the middle of a long reason is omitted.

    Reasons repeat names and other bytes of a file, of any length, and end up in terminals and logs.
    """
    line = escape_unprintable(text)
    if len(line) <= _MAX_REASON:
        return line
    half = (_MAX_REASON - 1) // 2
    return f"{line[: _MAX_REASON - 1 - half]}…{line[-half:]}"


def format_size_limit(size_bytes: int) -> str:
    """Return a limit in MiB if it is a whole number of them, else in bytes."""
    return f"{size_bytes >> 20} MiB" if size_bytes % 2**20 == 0 else f"{size_bytes} bytes"


def too_many_columns(count: int, most: int) -> str:
    """Return the reason for more columns than allowed."""
    return f"has {count} columns, more than `read_limits.max_columns` allows ({most})"


def os_error_reason(error: OSError) -> str:
    """Return why a file cannot be read, without its path."""
    return f"cannot be read ({(error.strerror or 'unknown reason').lower()})"
