"""Errors of reading source files, and the text of others in their messages."""

_MAX_REASON = 1_000  # characters


class DecodeError(Exception):
    """Bytes cannot be decompressed, or are not text of their charset; the message says why."""


class TaskInputError(Exception):
    """A task cannot use what it read; the message says why.

    A slice of a csv file holds a malformed record or a quote against the rules, so that the file
    has to be read in one piece; or a transformed record cannot be written.
    """


def escape_unprintable(text: str) -> str:
    """Return a text with line ends and other unprintable characters as escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def format_reason(text: str) -> str:
    """Return a reason as one printable line, without the middle of a long one.

    Reasons repeat names and other bytes of a file, of any length, and end up in terminals and logs.
    """
    line = escape_unprintable(text)
    if len(line) <= _MAX_REASON:
        return line
    half = (_MAX_REASON - 1) // 2
    return f"{line[: _MAX_REASON - 1 - half]}…{line[-half:]}"


def format_size_limit(size_bytes: int) -> str:
    """Return a limit in the unit that people set it in."""
    return f"{size_bytes >> 20} MiB" if size_bytes % 2**20 == 0 else f"{size_bytes} bytes"


def os_error_reason(error: OSError) -> str:
    """Return why a file cannot be read, without its path."""
    return f"cannot be read ({(error.strerror or 'unknown reason').lower()})"
