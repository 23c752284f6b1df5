"""The command `files`: the part files of a stream's live batches, for other programs to read."""

import click

from batch_pipeline.cli.console import print_json, say
from batch_pipeline.cli.options import as_json, one_stream, opened
from batch_pipeline.model.location import shown


@click.command()
@one_stream
@as_json
def files(stream: str, as_json: bool) -> None:
    """List the part files of STREAM's live batches: each landed file once, in its newest version.

    Prints a path or an s3:// URI per line. Batches of backfills are left out, since they repeat
    records. Nothing is changed.

    \b
    Example:
      batch-pipeline files orders
    """
    from batch_pipeline.pipeline.read import InventoryBatches

    with opened() as pipeline:
        name = pipeline.stream(stream).name
        manifests = InventoryBatches(pipeline.database).current(name).manifests
    if not as_json:
        for manifest in manifests:
            for part in manifest.part_files:
                say(shown(part.uri))
        return
    print_json(
        {
            "stream": name,
            "files": [
                {
                    "uri": part.uri,
                    "batch": manifest.batch.key,
                    "generation": manifest.generation,
                    "format": manifest.encoding.format.value,
                    "compression": manifest.encoding.compression.value,
                    "schema_version": manifest.schema_version,
                    "records": part.records,
                    "size_bytes": part.size_bytes,
                    "sha256": part.sha256,
                }
                for manifest in manifests
                for part in manifest.part_files
            ],
        }
    )
