"""How csv is written, detected from its start."""

import pytest

from batch_pipeline.encode.readers.csv_parsers import detect_dialect, guess_charset
from batch_pipeline.model.stream import CsvOptions


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_dialect_is_detected_by_what_parts_all_lines_alike(delimiter: str) -> None:
    """Expect the delimiter, though another one stands in some cells."""
    lines = ["id_name_note", "1_Ada_a, b", '2_"Zoë; | x"_"c, d"', "3_Bo_"]
    text = "\n".join(lines).replace("_", delimiter)
    if delimiter == ",":
        text = text.replace("a, b", '"a, b"')
    assert detect_dialect(text.encode(), is_whole=True) == CsvOptions(delimiter=delimiter)


def test_dialect_without_a_header_names_the_columns() -> None:
    """Expect names of our own where the first record begins with a number, a header else."""
    found = detect_dialect(b"1,Ada\n2,Bo\n", is_whole=True)
    assert found is not None
    assert found.names == ("column_1", "column_2")
    assert detect_dialect(b"country,2025\nIE,1\n", is_whole=True) == CsvOptions()


def test_dialect_of_prose_is_none() -> None:
    """Expect no table where lines are parted in no way alike."""
    text = b"Dear all,\nplease find, as ever,\nthe figures; of May, June\nYours\n"
    assert detect_dialect(text, is_whole=True) is None
    assert detect_dialect(b"", is_whole=True) is None


def test_dialect_of_a_start_leaves_its_last_line_alone() -> None:
    """Expect a record that was cut off not to count."""
    found = detect_dialect(b'id,name,city\n1,Ada,Cork\n2,"Bo', is_whole=False)
    assert found == CsvOptions()


def test_charset_is_utf_8_wherever_it_can_be() -> None:
    """Expect other charsets for bytes that are no UTF-8 only; a cut character is one."""
    assert guess_charset("Zoë".encode()[:-1]) == "utf-8"
    assert guess_charset("Zoë".encode("cp1252") + b",1") == "cp1252"
    assert guess_charset(b"Zo\xeb\x81,1") == "iso-8859-1"
