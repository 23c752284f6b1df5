"""Tells by the start of a text how csv is written: what stands between cells, and in which charset.

A guess from the first records, for people to look at: reading never follows it, and refuses files
whose header is one column where the guess is another delimiter.
"""

import codecs
import re
from dataclasses import replace
from itertools import islice

from batch_pipeline.domain.stream import CsvOptions
from batch_pipeline.spark.read.csv_strict import CsvRecord, CsvScanner

_DELIMITERS = (",", ";", "\t", "|")
_RECORDS = 100
_USUAL = CsvOptions()
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


def dialect_of(start: bytes, *, is_whole: bool, written: CsvOptions = _USUAL) -> CsvOptions | None:
    """Tell how csv is written by its start; None where no delimiter parts its lines alike.

    Nine of ten records have as many cells as the first one, two or more. `names` are given to the
    columns of a text whose first record begins with a number: it is no header. `is_whole` tells
    that the text ends there. Quote and escape are those of `written`.
    """
    best: tuple[int, CsvOptions] | None = None
    for delimiter in _DELIMITERS:
        if delimiter in {written.quote, written.escape}:
            continue
        options = replace(written, delimiter=delimiter)
        records = _records(start, options, is_whole=is_whole)
        width = len(records[0].cells) if records else 0
        alike = sum(len(record.cells) == width for record in records)
        if width > max(1, best[0] if best else 1) and alike >= 0.9 * len(records):
            best = width, _named(records, options)
    return None if best is None else best[1]


def delimiter_fault(
    start: bytes, header: str, options: CsvOptions, *, is_whole: bool
) -> str | None:
    """Return why a header of one column looks as if it had another delimiter, None if it does not.

    The header and nine of ten of the first records must have as many cells, with names that differ.
    """
    found = dialect_of(start, is_whole=is_whole, written=options)
    if found is None or found.delimiter == options.delimiter:
        return None
    names = _records(start, found, is_whole=is_whole)[0].cells
    if None in names or b"" in names or len(set(names)) < len(names):
        return None
    written = found.delimiter.replace("\t", "\\t")
    return (
        f"is one column, {header[:60]!r}, with `{options.delimiter}` between cells, and "
        f"{len(names)} columns with `{written}`, as the records; set `source.options: "
        f'{{delimiter: "{written}"}}`, or `{{delimiter: "{options.delimiter}"}}` to read it as one '
        f"column"
    )


def _records(start: bytes, options: CsvOptions, *, is_whole: bool) -> list[CsvRecord]:
    found = islice(CsvScanner(start, options, first_line=1, eof=is_whole), _RECORDS)
    return [one for one in found if isinstance(one, CsvRecord)]


def _named(records: list[CsvRecord], options: CsvOptions) -> CsvOptions:
    first = records[0].cells
    if len(records) < 2 or not _NUMBER.fullmatch(first[0] or b""):
        return options
    names = tuple(f"column_{number}" for number in range(1, len(first) + 1))
    return replace(options, names=names)
