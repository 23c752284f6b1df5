"""Reads the facts of a pointer file that are needed without the inventory.

Anybody may have written the file: each value is checked for its type and its bounds.
"""

from dataclasses import dataclass

from batch_pipeline.domain.json_fields import Fields
from batch_pipeline.domain.restored import ManifestUnfitError


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPointer:
    """The records of a manifest, and its publish number.

    `number` is None in manifests of early releases and of batches with more than 200,000 items.
    """

    records: int
    number: int | None


def read_pointer(text: bytes, name: str) -> PublishedPointer:
    """Read the pointer file of this name.

    Raises:
        ManifestUnfitError: it is not a pointer file.
    """
    fields = Fields.of(text, name)
    number = None
    if "inventory" in fields.values:
        number = fields.of_field("inventory").number("publish_number", least=1)
    records = sum(part.number("records") for part in fields.each("part_files"))
    return PublishedPointer(records=records, number=number)


def stream_of(text: bytes, name: str) -> str | None:
    """Return the stream that a pointer file names; None where it names none."""
    try:
        return Fields.of(text, name).of_field("inventory").of_field("job").text("stream")
    except ManifestUnfitError:
        return None
