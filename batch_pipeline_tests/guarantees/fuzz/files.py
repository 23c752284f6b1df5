"""Valid files of all formats to start from, and how those that have a structure are spoiled."""

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import zstandard

from batch_pipeline_tests.guarantees.fuzz.harness.mutations import mutated, spoiled
from batch_pipeline_tests.guarantees.fuzz.harness.targets import drawn
from batch_pipeline_tests.unit import json_texts
from batch_pipeline_tests.unit import test_typed_value_round_trips as typed
from batch_pipeline_tests.unit import test_value_round_trips as values

_COUNT = 24
LARGE_BYTES = 2**18
PACKINGS: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: gzip.compress(data, 1, mtime=0),
    lambda data: gzip.compress(data[:9], 1, mtime=0) + gzip.compress(data[9:], 1, mtime=0),
    bz2.compress,
    lambda data: lzma.compress(data, preset=0),
    zstandard.ZstdCompressor(write_checksum=True).compress,
)
_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.compress(data, 1)[2:-4],
    "snappy": lambda data: (
        pa.compress(data, codec="snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")
    ),
    "zstandard": zstandard.ZstdCompressor().compress,
    "bzip2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
}
_SYNC = b"0123456789abcdef"
AvroParts = tuple[bytes, int, bytes]  # the schema, the number of records, their bytes


def jsonl(number: int) -> list[bytes]:
    """JSON lines, with all ends of lines."""
    return _json(number, ["lines", "lines with returns"])


def documents(number: int) -> list[bytes]:
    """Arrays, and documents one behind the other."""
    return _json(number, ["array", "documents", "documents in one line", "array", "lines"])


def _json(number: int, layouts: Sequence[str]) -> list[bytes]:
    records = drawn(json_texts.records(), _COUNT, number)
    found = []
    for at, one in enumerate(records):
        texts = [json_texts.text_of(record, blank=" " * (at % 2)) for record in one]
        found.append(values.LAYOUTS[layouts[at % len(layouts)]](texts).encode())
    return found


def csv(number: int) -> list[bytes]:
    """Tables with a header."""
    found = []
    for at, (names, rows) in enumerate(drawn(values.csv_tables(), _COUNT, number)):
        quoted, end = at % 3 == 0, ("\n", "\r\n", "\r")[at % 5 % 3]
        lines = [
            ",".join(values.csv_cell(cell, quoted=quoted) for cell in row) for row in [names, *rows]
        ]
        found.append("".join(line + end for line in lines).encode())
    return found


def parquet(number: int) -> list[bytes]:
    """Small files with columns of all kinds."""
    columns = drawn(typed.columns(avro=False), _COUNT, number)
    packings = ("none", "snappy", "zstd")
    return [typed.parquet(one, packings[at % 3]) for at, one in enumerate(columns)]


def avro(number: int) -> list[AvroParts]:
    """Small files with fields of all kinds, taken apart."""
    found = []
    for one in drawn(typed.columns(avro=True), _COUNT, number):
        block: Any = next(iter(fastavro.block_reader(io.BytesIO(typed.avro(one, "null")))))
        schema = json.dumps(block.writer_schema).encode()
        found.append((schema, block.num_records, block.bytes_.getvalue()))
    return found


def arrow(number: int) -> list[bytes]:
    """Arrow files and streams, of which none is a source."""
    found = []
    for at, columns in enumerate(drawn(typed.columns(avro=False), _COUNT, number)):
        arrays = {name: pa.array(some, kind.arrow) for name, (kind, some) in columns.items()}
        table = pa.table(arrays)
        file = io.BytesIO()
        new = pa.ipc.new_file if at % 2 else pa.ipc.new_stream
        with new(file, table.schema) as writer:
            writer.write_table(table)
        found.append(file.getvalue())
    return found


def packed(number: int) -> list[bytes]:
    """Text files in all compressions."""
    plain = [*jsonl(number)[:20], *csv(number)[:20], *documents(number)[:10]]
    return [pack(data) for data in plain for pack in PACKINGS]


def text_made(random: Random, corpus: Sequence[bytes]) -> bytes:
    """Spoil text, and now and then compress it or write it in another charset."""
    data = mutated(random, corpus)
    fate = random.random()
    if fate < 0.1:
        return random.choice(PACKINGS)(data)
    if fate < 0.15:
        charset = random.choice(("utf-16", "utf-32", "utf-8-sig"))
        return data.decode("utf-8", "replace").encode(charset)
    return data


def large(number: int) -> list[bytes]:
    """Text files of all kinds."""
    return [*jsonl(number), *documents(number), *csv(number)]


def large_made(random: Random, corpus: Sequence[bytes]) -> bytes:
    """Repeat a few bytes of a spoiled file until it is long: what takes long shows itself."""
    data = mutated(random, corpus)
    start = random.randrange(len(data) + 1)
    piece = data[start : start + random.choice((1, 2, 5, 20, 100, 1000))] or b" "
    return data[:start] + piece * (LARGE_BYTES // len(piece)) + data[start:]


def packed_made(random: Random, corpus: Sequence[bytes]) -> bytes:
    """Spoil what is compressed; now and then put another one or something else behind it."""
    data = spoiled(random, random.choice(corpus))
    fate = random.random()
    if fate < 0.1:
        data += random.choice((b"\0" * 9, b"x", random.choice(corpus)))
    return data


def parquet_made(random: Random, corpus: Sequence[bytes]) -> bytes:
    """Spoil pages or the footer."""
    data = random.choice(corpus)
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    match random.randrange(5):
        case 0:
            return mutated(random, corpus)
        case 1:
            return spoiled(random, data[:start]) + data[start:]
        case 2:
            footer = spoiled(random, data[start:-8])
            return data[:start] + footer + len(footer).to_bytes(4, "little") + data[-4:]
        case 3:
            changed = bytearray(data)
            for _ in range(random.choice((1, 1, 2, 4))):
                changed[random.randrange(start, len(data) - 8)] = random.randrange(256)
            return bytes(changed)
        case _:
            return spoiled(random, data)


def avro_made(random: Random, corpus: Sequence[AvroParts]) -> bytes:
    """Spoil records, schema or container, each inside of a container that is right."""
    schema, count, records = random.choice(corpus)
    fate = random.randrange(6)
    if fate == 0:
        schema = random.choice(corpus)[0]
    elif fate == 1:
        schema = spoiled(random, schema) if random.random() < 0.3 else _other_types(random, schema)
    elif fate < 4:
        records = mutated(random, [one[2] for one in corpus] + [records] * 9)
    if random.random() < 0.05:
        count = random.choice((0, 1, count + 1, 2**31, 2**62))
    codec = random.choice(list(_CODECS)) if random.random() < 0.4 else "null"
    packed_records = _CODECS[codec](records)
    if fate == 5:
        packed_records = spoiled(random, packed_records)
    metadata = {b"avro.schema": schema, b"avro.codec": codec.encode()}
    head = b"Obj\x01" + _long(len(metadata))
    for key, value in metadata.items():
        head += _long(len(key)) + key + _long(len(value)) + value
    block = _long(count) + _long(len(packed_records)) + packed_records + _SYNC
    data = head + b"\0" + _SYNC + block * random.choice((1, 1, 1, 2))
    return spoiled(random, data) if fate == 4 else data


_WORDS = [
    *(
        b'"null"',
        b'"boolean"',
        b'"int"',
        b'"long"',
        b'"float"',
        b'"double"',
        b'"bytes"',
        b'"string"',
    ),
    *(b'"array"', b'"map"', b'"record"', b'"enum"', b'"fixed"', b'"outer"', b"-1", b"99999999999"),
    *(b'"date"', b'"time-millis"', b'"time-micros"', b'"timestamp-millis"', b'"timestamp-nanos"'),
    *(
        b'"decimal"',
        b'"uuid"',
        b'"local-timestamp-micros"',
        b"null",
        b"[]",
        b"{}",
        b'""',
        b"0",
        b"1.5",
    ),
    *(b'{"type":"enum","name":"e","symbols":["A","B"]}', b'{"type":"fixed","name":"f","size":3}'),
    *(b'{"type":"array","items":"null"}', b'{"type":"map","values":"long"}', b'["null","int"]'),
    *(b'{"type":"fixed","name":"f","size":-3}', b'{"type":"fixed","name":"f","size":16}'),
    *(
        b'{"type":"bytes","logicalType":"decimal","precision":99,"scale":2}',
        b'["int","string","bytes"]',
    ),
    b'{"type":"fixed","name":"f","size":12,"logicalType":"duration"}',
]


def _other_types(random: Random, schema: bytes) -> bytes:
    """Put another word in the place of a value of a schema."""
    value = json.loads(schema)
    places = [(value, key) for key in value]
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            places.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                waiting.append(holder[key])
    holder, key = random.choice(places)
    holder[key] = json.loads(random.choice(_WORDS))
    return json.dumps(value).encode()


def _long(value: int) -> bytes:
    value <<= 1
    octets: Any = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)
