"""moto's server with serialized writes, so that conditional writes are atomic as in S3.

moto checks whether an object exists and then stores it, each request in its own thread. Without the
lock, two concurrent conditional writes would both succeed.
"""

from threading import Lock
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_lock = Lock()
_put_object = S3Response.put_object


def _put_object_with_lock(response: S3Response) -> Any:
    with _lock:  # the body has been received already
        return _put_object(response)


if __name__ == "__main__":
    S3Response.put_object = _put_object_with_lock  # type: ignore[assignment, method-assign]
    main()
