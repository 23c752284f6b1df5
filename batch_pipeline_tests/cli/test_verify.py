"""The command `verify`."""

import json
from pathlib import Path
from typing import Any

from click.testing import Result

from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.cli.commands import invoke
from batch_pipeline_tests.defs.checks_fixture import path_of, publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.seeds import execute
from batch_pipeline_tests.storage_roots import content
from batch_pipeline_tests.store_faults import Faults


def run(*words: str) -> Result:
    """Run the command."""
    return invoke("verify", *words)


def checks_of(*words: str) -> dict[str, Any]:
    """Run with `--json` and return the checks of the stream by name."""
    [report] = json.loads(run(*words, "--json").stdout)["streams"]
    return {check["check"]: check for check in report["checks"]}


def test_quarantined_records_and_missing_files_are_named_and_exit_3(project: DefsHarness) -> None:
    path = path_of(publish_all(project, quarantined=1)[0])
    result = run()
    assert result.exit_code == 3
    assert "warn quarantine" in result.output
    assert checks_of()["quarantine"]["severe"] is False
    path.unlink()
    result = run("orders")
    assert result.exit_code == 3
    assert "FAIL part_files" in result.output
    assert f"{path} is missing" in result.output
    assert "Materialize the partition again" in result.output
    assert checks_of("--last", "2")["part_files"]["batches_checked"] == 2
    assert checks_of("--last", "2")["part_files"]["passed"]


def test_changed_byte_is_detected_only_with_deep(project: DefsHarness) -> None:
    path = path_of(publish_all(project)[0])
    path.write_bytes(b"X" + path.read_bytes()[1:])
    result = run()
    assert result.exit_code == 0, result.output
    assert "ok   part_files    Passed: batches checked: 4, files: 4." in result.output
    assert "checksums" not in result.output
    result = run("--deep", "--all")
    assert result.exit_code == 3
    check = checks_of("--deep")["checksums"]
    assert (check["passed"], check["severe"], check["problems"]) == (False, True, 1)
    assert f": {path} has " in check["worst"]
    assert check["worst"].endswith("was published")


def manifest_files(project: DefsHarness) -> list[Path]:
    """Return the manifest files, by name."""
    return sorted(Path(to_path(project.stream.storage.root), "manifests").iterdir())


def test_manifest_files_are_compared_with_the_inventory(project: DefsHarness) -> None:
    """A file is missing, another is of another attempt, and a third lists too few records."""
    publish_all(project)
    assert checks_of()["pointers"]["passed"]
    first, second, third, _ = manifest_files(project)
    first.unlink()
    assert f"{first} is missing" in checks_of()["pointers"]["worst"]
    execute(project.database, "UPDATE batch_pipeline.attempt SET pointer_uri = NULL WHERE id = 1")
    second.write_text(third.read_text())
    third.write_text(third.read_text().replace('"records": 15', '"records": 14'))
    check = checks_of()["pointers"]
    assert (check["passed"], check["severe"], check["batches_wrong"]) == (False, False, 3)
    assert check["next_step"].startswith("Programs that read manifest files miss these batches")


def move_to_s3(bucket: str, project: DefsHarness) -> list[str]:
    """Move the published files into S3 and return their URIs, also in the inventory."""
    uris = []
    for path in map(path_of, publish_all(project)):
        uris.append(f"{bucket}/batches/{path.name}")
        S3.put(uris[-1], path.read_bytes())
        path.unlink()
        [manifest] = [it for it in manifest_files(project) if path.name in it.read_text()]
        manifest.write_text(manifest.read_text().replace(to_uri(path), uris[-1]))
        execute(
            project.database,
            "UPDATE batch_pipeline.part_file SET uri = :new WHERE uri = :old",
            new=uris[-1],
            old=to_uri(path),
        )
    return uris


def test_part_files_in_s3_are_checked_unless_the_store_is_unreadable(
    project: DefsHarness, bucket: str, faults: Faults
) -> None:
    uris = move_to_s3(bucket, project)
    assert run("--deep").exit_code == 0
    S3.put(uris[0], content(uris[0]).swapcase())
    S3.delete(uris[1])
    result = run("--deep")
    assert result.exit_code == 3
    assert f"{uris[1]} is missing" in result.output
    assert "Do not load these batches" in result.output
    assert checks_of("--deep")["checksums"]["problems"] == 2
    assert checks_of()["part_files"]["problems"] == 2  # the SHA-256 that S3 keeps is compared
    faults.refuse(403, "AccessDenied")
    result = run()
    assert result.exit_code == 3
    assert "the store refuses s3:GetObject" in result.output
    assert "Do not load these batches" not in result.output
