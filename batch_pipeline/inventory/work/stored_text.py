"""Text as Postgres can store it."""


def storable(text: str) -> str:
    """Spell out what Postgres cannot store in a text: NUL, and bytes of names that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
