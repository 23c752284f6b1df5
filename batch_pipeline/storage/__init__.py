"""Read, write and list files by URI, on disks and in object stores.

`filesystem` has the interface, `local` and `s3` implement it and register themselves. On top of it
are the landing listings, the part files, the manifest files and their verification. Only this
package speaks to S3. Every failure of a store is an `OSError` whose text says what to do.
"""

from batch_pipeline.storage import local, s3

__all__ = ["local", "s3"]
