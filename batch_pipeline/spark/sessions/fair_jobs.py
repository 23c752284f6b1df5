"""Jobs of several sessions share one JVM fairly: none waits until another has no task left."""

from pathlib import Path

from batch_pipeline.spark.sessions.launch import kept_file

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
        "spark.scheduler.allocation.file": kept_file(home, "pools.xml", _POOLS).as_uri(),
    }
