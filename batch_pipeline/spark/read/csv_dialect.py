"""Tells by the start of a text how csv is written: what stands between cells, and in which charset.

A guess from the first records, for people to look at; reading itself never guesses.
"""

import codecs
import re
from itertools import islice

from batch_pipeline.domain.stream import CsvOptions
from batch_pipeline.spark.read.csv_strict import CsvRecord, CsvScanner

_DELIMITERS = (",", ";", "\t", "|")
_RECORDS = 100
_NUMBER = re.compile(rb"[+-]?[0-9]+([.,][0-9]+)?")


def charset_guess(start: bytes) -> str:
    """Give the charset that the start of a text fits; `utf-8` wherever that is possible."""
    for charset in ("utf-8", "cp1252"):
        try:
            codecs.getincrementaldecoder(charset)().decode(start)
        except UnicodeDecodeError:
            continue
        return charset
    return "iso-8859-1"


def dialect_of(start: bytes, *, is_whole: bool) -> CsvOptions | None:
    """Tell how csv is written by its start; None where no delimiter parts its lines alike.

    Nine of ten records have as many cells as the first one, two or more. `names` are given to the
    columns of a text whose first record begins with a number: it is no header. `is_whole` tells
    that the text ends there.
    """
    best: tuple[int, CsvOptions] | None = None
    for delimiter in _DELIMITERS:
        options = CsvOptions(delimiter=delimiter)
        records = _records(start, options, is_whole=is_whole)
        width = len(records[0].cells) if records else 0
        alike = sum(len(record.cells) == width for record in records)
        if width > max(1, best[0] if best else 1) and alike >= 0.9 * len(records):
            best = width, _named(records, options)
    return None if best is None else best[1]


def _records(start: bytes, options: CsvOptions, *, is_whole: bool) -> list[CsvRecord]:
    found = islice(CsvScanner(start, options, first_line=1, eof=is_whole), _RECORDS)
    return [one for one in found if isinstance(one, CsvRecord)]


def _named(records: list[CsvRecord], options: CsvOptions) -> CsvOptions:
    first = records[0].cells
    if len(records) < 2 or not _NUMBER.fullmatch(first[0] or b""):
        return options
    names = tuple(f"column_{number}" for number in range(1, len(first) + 1))
    return CsvOptions(delimiter=options.delimiter, names=names)
