"""Guess the charset and the dialect of csv text from its start."""

import codecs
import re
from dataclasses import replace
from itertools import islice

from batch_pipeline.encode.readers.csv_parsers import CsvRecord, CsvScanner
from batch_pipeline.model.stream import CsvOptions

_DELIMITERS = (",", ";", "\t", "|")
_MAX_RECORDS = 100
_DEFAULT = CsvOptions()
_NUMBER = re.compile(rb"[+-]?[0-9]+([.,][0-9]+)?")


def guess_charset(start: bytes) -> str:
    """Return the charset that the start of a text fits; `utf-8` wherever that is possible."""
    for charset in ("utf-8", "cp1252"):
        try:
            codecs.getincrementaldecoder(charset)().decode(start)
        except UnicodeDecodeError:
            continue
        return charset
    return "iso-8859-1"


def detect_dialect(
    start: bytes, *, is_whole: bool, options: CsvOptions = _DEFAULT
) -> CsvOptions | None:
    """Return the dialect of csv text, None if no delimiter splits its lines alike.

    A delimiter fits if nine of ten records have as many cells as the first one, two or more. A
    first record that begins with a number is not a header: such columns get `names`. `is_whole`
    states that the text ends there. Quote and escape are those of `options`.
    """
    best: tuple[int, CsvOptions] | None = None
    for delimiter in _DELIMITERS:
        if delimiter in {options.quote, options.escape}:
            continue
        candidate = replace(options, delimiter=delimiter)
        records = _records(start, candidate, is_whole=is_whole)
        width = len(records[0].cells) if records else 0
        alike = sum(len(record.cells) == width for record in records)
        if width > max(1, best[0] if best else 1) and alike >= 0.9 * len(records):
            best = width, _with_names(records, candidate)
    return None if best is None else best[1]


def wrong_delimiter_reason(
    start: bytes, header: str, options: CsvOptions, *, is_whole: bool
) -> str | None:
    """Return why a header of one column seems to have another delimiter, None if it does not.

    The header and nine of ten of the first records must have as many cells, with distinct names.
    """
    dialect = detect_dialect(start, is_whole=is_whole, options=options)
    if dialect is None or dialect.delimiter == options.delimiter:
        return None
    names = _records(start, dialect, is_whole=is_whole)[0].cells
    if None in names or b"" in names or len(set(names)) < len(names):
        return None
    detected = dialect.delimiter.replace("\t", "\\t")
    return (
        f"is one column, {header[:60]!r}, with `{options.delimiter}` between cells, and "
        f"{len(names)} columns with `{detected}`, as the records; set `source.options: "
        f'{{delimiter: "{detected}"}}`, or `{{delimiter: "{options.delimiter}"}}` to read it as '
        f"one column"
    )


def _records(start: bytes, options: CsvOptions, *, is_whole: bool) -> list[CsvRecord]:
    records = islice(CsvScanner(start, options, first_line=1, eof=is_whole), _MAX_RECORDS)
    return [record for record in records if isinstance(record, CsvRecord)]


def _with_names(records: list[CsvRecord], options: CsvOptions) -> CsvOptions:
    first = records[0].cells
    if len(records) < 2 or not _NUMBER.fullmatch(first[0] or b""):
        return options
    names = tuple(f"column_{number}" for number in range(1, len(first) + 1))
    return replace(options, names=names)
