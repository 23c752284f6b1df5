"""Jobs of several sessions share one JVM fairly: none waits until another has no task left."""

import os
import tempfile
from pathlib import Path

# Without a file, FAIR has one pool whose jobs come one after the other all the same.
_POOLS = """\
<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
  </pool>
</allocations>
"""


def fair_conf(home: Path) -> dict[str, str]:
    """Give the settings by which running jobs take turns at free cores, task by task."""
    return {
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": _pools_file(home).as_uri(),
    }


def _pools_file(home: Path) -> Path:
    path = home.absolute() / "spark" / "pools.xml"
    if not path.exists() or path.read_text(encoding="utf-8") != _POOLS:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".pools-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_POOLS)
        Path(temporary).replace(path)
    return path
