"""Which code speaks gzip: ISA-L where it is installed, else zlib. Reads and writes nothing."""

import zlib
from importlib import import_module
from importlib.util import find_spec
from typing import Any

HAS_ISAL = find_spec("isal") is not None  # there is no wheel for some platforms
ZLIB: Any = import_module("isal.isal_zlib") if HAS_ISAL else zlib
GZIP_CONTAINER = 31  # zlib's window bits: 15, plus 16 for a gzip header without time or file name
