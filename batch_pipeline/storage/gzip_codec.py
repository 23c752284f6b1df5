"""The gzip implementation: ISA-L where it is installed, else zlib.

Separate from the formats because programs that only check for ISA-L must not load pyarrow.
"""

import gzip
import zlib
from importlib import import_module
from importlib.util import find_spec
from typing import Any

HAS_ISAL = find_spec("isal") is not None  # some platforms have no wheel
ZLIB: Any = import_module("isal.isal_zlib") if HAS_ISAL else zlib
GZIP: Any = import_module("isal.igzip") if HAS_ISAL else gzip
GZIP_CONTAINER = 31  # zlib's window bits: 15, plus 16 for a gzip header without time or file name
GZIP_ERRORS: tuple[type[Exception], ...] = (gzip.BadGzipFile, EOFError, zlib.error, ZLIB.error)
