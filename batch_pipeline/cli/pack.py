"""The command `pack`: one archive of what executors of a Spark cluster import."""

from pathlib import Path

import click

from batch_pipeline.cli.console import print_json, say
from batch_pipeline.cli.options import as_json
from batch_pipeline.config.units import format_bytes


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--with",
    "added",
    multiple=True,
    metavar="MODULE",
    help="Also pack this module, for example a transform; may be repeated.",
)
@as_json
def pack(file: Path, added: tuple[str, ...], as_json: bool) -> None:
    """Write FILE (.tar.gz) with this release and the packages that Spark tasks import.

    For executors without these packages, on the same kind of machine and with the same minor
    version of Python. Set BATCH_PIPELINE_SPARK_PACKED to the file.

    \b
    Example:
      batch-pipeline pack executors.tar.gz --with my_transforms
    """
    from batch_pipeline.spark.packed_archive import build_archive

    file = file.absolute()
    note = build_archive(file, added)
    size_bytes = file.stat().st_size
    if as_json:
        print_json(
            {
                "archive": str(file),
                "size_bytes": size_bytes,
                "python": note.python,
                "platform": note.platform,
                "release": note.release,
                "distributions": dict(note.distributions),
            }
        )
        return
    say(f"{file}: {format_bytes(size_bytes)}, for Python {note.python} on {note.platform}")
    for name, version in {"batch-pipeline": note.release, **note.distributions}.items():
        say(f"  {name} {version}")
    say(f"Use it by BATCH_PIPELINE_SPARK_PACKED={file}")
