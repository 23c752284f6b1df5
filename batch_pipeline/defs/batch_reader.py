"""The resource by which assets of other code read published batches.

```python
@dg.asset(deps=[batches_of("sales")], partitions_def=partitions_of("sales"))
def sales_by_city(context: dg.AssetExecutionContext, batches: BatchReader) -> None:
    table = batches.load(context).to_arrow()
```
"""

from pathlib import Path
from typing import Any, overload

import dagster as dg
from pydantic import Field

from batch_pipeline.defs.names import partitions_of
from batch_pipeline.defs.resources import InventoryResource
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.location import to_uri
from batch_pipeline.pipeline.published_batches import (
    BatchSource,
    InventoryBatches,
    PublishedBatches,
    StoredBatches,
)

_EXAMPLE = 'batches.load("sales", "00000001-00000007")'


class BatchReader(InventoryResource):
    """Reads published batches of an inventory.

    A field that is not set is taken from the environment: `BATCH_PIPELINE_INVENTORY_CONN` and
    `BATCH_PIPELINE_HOME`. With `storage` batches are looked up in the manifest files of a storage
    root instead, which needs neither a database nor a Dagster instance: for tests.
    """

    storage: str | None = Field(
        default=None, description="Path or URI of a storage root to read instead of an inventory."
    )

    @overload
    def load(self, stream: dg.AssetExecutionContext) -> PublishedBatches: ...

    @overload
    def load(self, stream: str, *keys: str) -> PublishedBatches: ...

    def load(self, stream: Any, *keys: str) -> PublishedBatches:
        """Return published batches, each in its newest generation.

        With the context of an asset: the partitions of the run, in the stream whose batches asset
        is among the asset's `deps`. With the name of a stream: the batches with these partition
        keys. Part files are read when the result is converted.

        Raises:
            ConfigurationError: the asset depends on the batches of several streams or of none, or
                there is no such stream.
            UnknownBatchError: a key is not that of a planned batch.
            BatchNotPublishedError: a batch is planned, but not published.
        """
        if not isinstance(stream, str):
            stream, keys = _partitions_of_run(stream)
        if not keys:
            raise ConfigurationError(
                f"{stream}: `load` was called without a partition key. Name one, as in {_EXAMPLE}, "
                f"or read all batches with `current`."
            )
        return self._source().partitions(stream, keys)

    def current(self, stream: str) -> PublishedBatches:
        """Return all live batches of a stream: each file once, in its newest generation.

        Raises:
            ConfigurationError: there is no such stream.
        """
        return self._source().current(stream)

    def _source(self) -> BatchSource:
        if self.storage is not None:
            place = self.storage
            return StoredBatches(place if "://" in place else to_uri(Path(place).absolute()))
        return InventoryBatches(self.pipeline.database)


def _partitions_of_run(context: dg.AssetExecutionContext) -> tuple[str, tuple[str, ...]]:
    """Return the stream on whose batches an asset depends, and the partition keys of the run."""
    inputs = {
        key.path[0]: name
        for name, key in context.assets_def.keys_by_input_name.items()
        if [*key.path[1:]] == ["batches"]
    }
    if len(inputs) != 1:
        found = ", ".join(sorted(inputs)) or "none"
        raise ConfigurationError(
            f"{context.asset_key.to_user_string()}: `load(context)` reads the batches of the one "
            f"stream in `deps`; its streams: {found}. Add `batches_of(...)` to `deps`, or name "
            f"stream and key, as in {_EXAMPLE}."
        )
    ((stream, name),) = inputs.items()
    if context.assets_def.partitions_def == partitions_of(stream):
        return stream, tuple(context.partition_keys)
    return stream, tuple(context.asset_partition_keys_for_input(name))
