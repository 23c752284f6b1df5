"""Read, write and list files by URI, on disks and in object stores.

`filesystem` defines the interface; `local` and `s3` implement it and register themselves. The
landing listings, the part files, the manifest files and their verification build on it. Only this
package accesses S3. Every failure of a store is an `OSError` whose text says what to do.
"""

from batch_pipeline.storage import local, s3

__all__ = ["local", "s3"]
