"""Text of others in messages: one line of letters and signs, whatever they have put into it."""


def readable(text: str) -> str:
    """Write what no terminal or log should be given, such as line ends, as escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
