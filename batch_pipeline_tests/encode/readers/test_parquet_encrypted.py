"""Parquet with a readable end and encrypted columns, whose metadata Arrow must not be asked for."""

import io
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from batch_pipeline.encode.chunks import ByteRange
from batch_pipeline.model.errors import BadFileError
from batch_pipeline_tests.encode.readers.test_parquet import tables


class Keys(pe.KmsClient):  # type: ignore[misc]  # Arrow has no types for it
    """Keeps keys as they are."""

    def __init__(self, _: Any) -> None:
        pe.KmsClient.__init__(self)

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        """Write a key as text."""
        return (master_key_identifier + key_bytes.hex()).encode()

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        """Read what `wrap_key` wrote."""
        return bytes.fromhex(wrapped_key.decode().removeprefix(master_key_identifier))


def encrypted() -> bytes:
    """Write a file of two columns, the second one encrypted with a key of its own."""
    configuration = pe.EncryptionConfiguration(
        footer_key="f",
        column_keys={"c": ["b"]},
        plaintext_footer=True,
        cache_lifetime=timedelta(minutes=5),
    )
    properties = pe.CryptoFactory(Keys).file_encryption_properties(
        pe.KmsConnectionConfig(), configuration
    )
    file = io.BytesIO()
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    with pq.ParquetWriter(file, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return file.getvalue()


@pytest.mark.parametrize("part", [None, ByteRange(start=0, stop=2**20)])
def test_parquet_reader_with_an_encrypted_column_refuses_the_file(part: ByteRange | None) -> None:
    """In one piece or in parts; the process lives on."""
    with pytest.raises(BadFileError, match="is encrypted"):
        tables(encrypted(), part=part)
