"""Reads pointer files back as manifests with their origin. Nothing in them is believed: every value
is checked for its type, its bounds and whether it agrees with the name of the file and the others.
Nothing is opened here; whether the files that they name are there is for others to find out.
"""

import re
from uuid import UUID

from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.errors import ConservationError, InvalidValueError
from batch_pipeline.domain.file_range import split_location
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.json_fields import Fields
from batch_pipeline.domain.location import (
    is_object,
    join_uri,
    split_object,
    to_path,
    to_uri,
)
from batch_pipeline.domain.manifest import Manifest, PartFile
from batch_pipeline.domain.origin import VERSION, Origin, OriginItem, OriginJob
from batch_pipeline.domain.partition_key import parse_partition_key
from batch_pipeline.domain.restored import ManifestUnfitError
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stored_file import AttemptFile, Folder, PointerFile, parse_name
from batch_pipeline.domain.stream import Storage

_MOST_COUNT = 2**31 - 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RELEASE = "it was written by a release that did not say enough in it"


def read_pointer(text: bytes, name: str, storage: Storage) -> Manifest:
    """Read the pointer file of this name; gives a manifest with its origin.

    The number of the batch, which is the inventory's to give, is 0.

    Raises:
        ManifestUnfitError: it is none, or says what cannot be.
    """
    fields = Fields.of(text, name)
    if "inventory" not in fields.values:
        fields.refuse(_RELEASE)
    try:
        manifest = _manifest(fields)
        _check(manifest, fields, storage)
    except (InvalidValueError, ConservationError) as error:
        raise ManifestUnfitError(name, str(error).rstrip(".")) from error
    return manifest


def stream_of(text: bytes, name: str) -> str | None:
    """Give the stream that a pointer file says it is of; None where it does not tell."""
    try:
        return Fields.of(text, name).of_field("inventory").of_field("job").text("stream")
    except ManifestUnfitError:
        return None


def _manifest(fields: Fields) -> Manifest:
    inventory = fields.of_field("inventory")
    origin, records = _origin(inventory), fields.of_field("records")
    encoding = fields.of_field("encoding")
    try:
        token = UUID(fields.text("token"))
        written_as = Encoding(
            format=Format(encoding.text("format")),
            compression=Compression(encoding.text("compression")),
        )
    except ValueError:
        fields.refuse("its token or its encoding is none")
    keys = fields.some("key_properties")
    if not all(isinstance(key, str) for key in keys):
        fields.refuse("key_properties are no names")
    return Manifest(
        stream=fields.text("stream"),
        batch=_batch(fields, inventory.of_field("batch")),
        attempt=fields.number("attempt", least=1, most=_MOST_COUNT),
        token=token,
        generation=fields.number("generation", least=1, most=_MOST_COUNT),
        encoding=written_as,
        schema=origin.schema,
        schema_version=fields.number("schema_version", least=1, most=_MOST_COUNT),
        key_properties=tuple(keys),
        part_files=tuple(_part(one) for one in fields.each("part_files")),
        quarantine_files=tuple(_part(one) for one in fields.each("quarantine_files")),
        items=fields.number("items"),
        records_read=records.number("read"),
        records_filtered=records.number("filtered"),
        records_quarantined=records.number("quarantined"),
        records_transformed=records.maybe("transformed", records.number),
        origin=origin,
    )


def _batch(fields: Fields, batch: Fields) -> Batch:
    ids = batch.values.get("item_ids")
    is_list = isinstance(ids, list) and all(type(one) is int for one in ids)
    if ids is not None and not (is_list and ids == sorted(set(ids)) and ids):
        fields.refuse("the ids of its batch are no rising numbers")
    id_range = parse_partition_key(fields.text("batch_id"))
    if ids is not None and (ids[0], ids[-1]) != (id_range.first_id, id_range.last_id):
        fields.refuse("the ids of its batch do not begin and end as its range does")
    return Batch(
        id=0,
        job=fields.text("stream"),
        id_range=id_range,
        weight=batch.number("weight"),
        count=batch.number("count"),
        oversized=batch.flag("oversized"),
        item_ids=None if ids is None else tuple(ids),
    )


def _part(fields: Fields) -> PartFile:
    sha256 = fields.text("sha256")
    if not _SHA256.fullmatch(sha256):
        fields.refuse(f"{fields.place}sha256 is none")
    return PartFile(
        uri=fields.text("uri"),
        records=fields.number("records"),
        size_bytes=fields.number("size_bytes"),
        sha256=sha256,
    )


def _origin(fields: Fields) -> Origin:
    if fields.number("version") != VERSION:
        fields.refuse("a newer release wrote it")
    pairs = fields.some("columns")
    try:
        schema = RecordSchema.from_json([(str(name), str(text)) for name, text in pairs])
    except (TypeError, ValueError):
        fields.refuse("its columns are none")
    counters = fields.of_field("facts")
    return Origin(
        job=_job(fields.of_field("job")),
        publish_number=fields.number("publish_number", least=1),
        run_id=fields.text("run_id"),
        started_at=fields.time("started_at"),
        published_at=fields.time("published_at"),
        planned_with=fields.of_field("planned_with").values,
        facts={key: counters.number(key) for key in counters.values},
        weight_read=fields.number("weight_read"),
        schema=schema,
        items=tuple(_item(one) for one in fields.each("items")),
    )


def _job(fields: Fields) -> OriginJob:
    try:
        kind = JobKind(fields.text("kind"))
    except ValueError:
        fields.refuse("its job is of no kind")
    return OriginJob(
        stream=fields.text("stream"),
        kind=kind,
        meta_table=fields.text("meta_table"),
        config=fields.of_field("config").values,
        max_attempts=fields.number("max_attempts", least=1, most=_MOST_COUNT),
        bisect=fields.flag("bisect"),
        parent=fields.maybe("parent", fields.text),
    )


def _item(fields: Fields) -> OriginItem:
    location = fields.maybe("location", fields.text)
    if location is not None and not _is_location(location):
        fields.refuse(f"{fields.place}location is not written as locations are")
    if location is not None and None in [*map(fields.values.get, ("size_bytes", "modified_at"))]:
        fields.refuse(f"{fields.place}size or time are missing")
    return OriginItem(
        id=fields.number("id"),
        read=fields.number("read"),
        written=fields.number("written"),
        filtered=fields.number("filtered"),
        quarantined=fields.number("quarantined"),
        location=location,
        size_bytes=fields.maybe("size_bytes", fields.number),
        modified_at=fields.maybe("modified_at", fields.time),
        etag=fields.maybe("etag", fields.text),
        bad_file=fields.maybe("bad_file", fields.text),
        read_etag=fields.maybe("read_etag", fields.text),
        read_version=fields.maybe("read_version", fields.text),
    )


def _is_location(text: str) -> bool:
    """Tell whether a text is written as registration writes locations, and leads nowhere else."""
    uri, part = split_location(text)
    if text != uri + ("" if part is None else part.fragment):
        return False
    if not {".", ".."}.isdisjoint(uri.split("/")):
        return False
    if is_object(uri):
        return bool(split_object(uri)[1])
    return to_uri(to_path(uri)) == uri


def _check(manifest: Manifest, fields: Fields, storage: Storage) -> None:
    """Check that a manifest agrees with its name, and the parts of it with each other."""
    named, origin = parse_name(Folder.MANIFESTS, fields.name), manifest.origin
    head = storage.prefix + manifest.stream
    expected = (head, manifest.batch.id_range, manifest.generation)
    if not isinstance(named, PointerFile) or (named.head, named.ids, named.generation) != expected:
        fields.refuse("it is the manifest of another batch or generation than its name says")
    for folder, parts in (
        (Folder.ROOT, manifest.part_files),
        (Folder.QUARANTINE, manifest.quarantine_files),
    ):
        for part in parts:
            if not _is_own(part.uri, folder, manifest, storage):
                fields.refuse(f"its file {part.uri} is none of its attempt in {storage.root}")
    if origin is not None:
        _check_items(manifest.batch, manifest.items, origin, fields)


def _is_own(uri: str, folder: Folder, manifest: Manifest, storage: Storage) -> bool:
    start = f"{join_uri(storage.root, folder).rstrip('/')}/"
    named = parse_name(folder, uri.removeprefix(start)) if uri.startswith(start) else None
    return named == AttemptFile(
        head=storage.prefix + manifest.stream,
        ids=manifest.batch.id_range,
        number=manifest.attempt,
        token=manifest.token.hex[:8],
    )


def _check_items(batch: Batch, items: int, origin: Origin, fields: Fields) -> None:
    ids = [item.id for item in origin.items]
    if ids != sorted(set(ids)) or len(ids) != items:
        fields.refuse("its items are not so many, in rising order, as it says")
    if (ids and not _within(batch.id_range, ids)) or not set(ids) <= set(batch.item_ids or ids):
        fields.refuse("it has items that are not of its batch")
    for item in origin.items:
        accounted = item.written + item.filtered + item.quarantined
        if item.read != accounted:
            raise ConservationError(f"item {item.id}", item.read, accounted)


def _within(id_range: IdRange, ids: list[int]) -> bool:
    return id_range.first_id <= ids[0] and ids[-1] <= id_range.last_id
