"""Which names a landing takes: patterns of the stream file, and names that say "not yet".

The same for folders and for buckets. What lies behind a name is not looked at.
"""

from fnmatch import fnmatchcase

from batch_pipeline.domain.stream import Source

UNFINISHED = (".*", "*.tmp", "*.part", "*~")


def is_unfinished(relative: str) -> bool:
    """Tell a path below the root that is somebody's unfinished work, or in a hidden folder."""
    *folders, name = relative.split("/")
    hidden = any(folder.startswith(".") for folder in folders)
    return hidden or any(fnmatchcase(name, pattern) for pattern in UNFINISHED)


def is_chosen(source: Source, name: str, relative: str) -> bool:
    """Tell by name, and by path below the root, whether the patterns of a source take a file."""
    if any(_matches(name, relative, pattern) for pattern in source.exclude):
        return False
    return any(_matches(name, relative, pattern) for pattern in source.include)


def why_unwanted(source: Source, relative: str) -> str | None:
    """Say in words why a path below the root is left out; None where it is taken."""
    if is_unfinished(relative):
        return f"names like {', '.join(UNFINISHED)} are unfinished files"
    if not is_chosen(source, relative.rpartition("/")[2], relative):
        return "left out by `source.include` and `source.exclude`"
    return None


def _matches(name: str, relative: str, pattern: str) -> bool:
    """Match a pattern with a slash against the path below the root, any other against the name."""
    return fnmatchcase(relative if "/" in pattern else name, pattern)
