"""moto's server, in which one write is decided before the next begins, as it is in S3.

moto looks for an object and then stores it, and answers each request in a thread of its own: two
writers who both want to be the first would both be told that they are.
"""

from threading import Lock
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_turn = Lock()
_put_object = S3Response.put_object


def _put_object_in_turn(response: S3Response) -> Any:
    with _turn:  # the bytes have been received by now
        return _put_object(response)


if __name__ == "__main__":
    S3Response.put_object = _put_object_in_turn  # type: ignore[assignment, method-assign]
    main()
