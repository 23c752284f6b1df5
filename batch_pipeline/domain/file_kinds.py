"""What names of files tell: their ending, the word they begin with, and a name for a stream.

Names only; what is in the files is found out by others.
"""

import glob
import re
from dataclasses import dataclass

from batch_pipeline.domain.stream import STREAM_NAME, SourceFormat

_PACKED = ("", ".gz", ".gzip", ".bz2", ".xz", ".zst", ".zstd")
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,15}$")
_RANDOM = re.compile(r"[0-9a-fA-F]{8,}(?![A-Za-z])")  # a hash, or the start of a UUID
_BREAKS = "-_. "
_NUMBER = re.compile(r"(?:^|(?<=[-_. ]))[0-9]")
_DIGIT = re.compile(r"[0-9]")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_FORMATS = {
    ".csv": SourceFormat.CSV,
    ".tsv": SourceFormat.CSV,
    ".tab": SourceFormat.CSV,
    ".psv": SourceFormat.CSV,
    ".jsonl": SourceFormat.JSONL,
    ".ndjson": SourceFormat.JSONL,
    ".json": SourceFormat.JSON,
    ".parquet": SourceFormat.PARQUET,
    ".pq": SourceFormat.PARQUET,
    ".avro": SourceFormat.AVRO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """Files of one kind: their ending, in lower case and without a compression's, and the word
    that their names begin with, as it stands.
    """

    ending: str
    word: str

    @property
    def format(self) -> SourceFormat | None:
        """What the ending promises; None where it promises nothing."""
        return _FORMATS.get(self.ending)


def kind_of(name: str) -> tuple[FileKind, str]:
    """Give the kind of a file, and its whole ending as it is written: `orders-`, `.csv.GZ`."""
    stem, packed = name, ""
    found = _ENDING.search(stem)
    if found and found[0].lower() in _PACKED:
        stem, packed = stem[: found.start()], found[0]
        found = _ENDING.search(stem)
    ending = found[0] if found and found.start() else ""
    stem = stem.removesuffix(ending) if ending else stem
    return FileKind(ending=ending.lower(), word=_word(stem)), ending + packed


def pattern(word: str, ending: str) -> str:
    """Give the name pattern of the files that begin and end like this."""
    return f"{glob.escape(word)}*{glob.escape(ending)}"


def stream_name_of(text: str) -> str | None:
    """Make a stream's name of a word or a folder's name; None where no letter or digit is left."""
    name = _NOT_IN_NAMES.sub("_", text).strip(".-").rstrip("_.-")[:100]
    return name if STREAM_NAME.fullmatch(name) else None


def common_word(prefix: str) -> str:
    """Give the word in what the names of several files begin with: up to the first number.

    A number within a word, as in `covid19-regions-`, belongs to it.
    """
    number = _NUMBER.search(prefix)
    start = prefix if number is None else prefix[: number.start()]
    return _up_to_break(start.rstrip("0123456789"), start)


def _word(stem: str) -> str:
    """Give what comes before dates, numbers and random names."""
    if _RANDOM.match(stem) or not stem.isprintable():
        return ""
    word = _DIGIT.split(stem, maxsplit=1)[0]
    return word if word == stem else _up_to_break(word, stem)


def _up_to_break(word: str, stem: str) -> str:
    """Leave out one or two letters behind the last break, as of `sales_Q1`."""
    if word == stem and word[-1:] in _BREAKS:
        return word
    end = max(word.rfind(one) for one in _BREAKS) + 1
    return word[:end] if end and len(word) - end <= 2 else word
