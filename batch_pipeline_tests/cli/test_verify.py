"""The command `verify`, run in this process on a real server and a real disk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from batch_pipeline.cli import cli
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.defs.checks_fixture import path_of, publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsScene
from batch_pipeline_tests.seeds import execute
from batch_pipeline_tests.storage_roots import content
from batch_pipeline_tests.store_faults import Faults

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
Run = Callable[..., Result]


def run(*words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(cli, ["verify", *words])


def told(*words: str) -> dict[str, Any]:
    """Run with `--json` and give the checks of the stream by name."""
    [report] = json.loads(run(*words, "--json").stdout)["streams"]
    return {one["check"]: one for one in report["checks"]}


def test_verify_of_batches_in_order_ends_well(scene: DefsScene) -> None:
    """Expect exit code 0 and a line for each check but the one that reads every byte."""
    publish_all(scene)
    ended = run()
    assert ended.exit_code == 0, ended.output
    assert "ok   part_files    Passed: batches checked: 4, files: 4." in ended.output
    assert "checksums" not in ended.output


def test_verify_tells_of_a_missing_file_and_exits_with_3(scene: DefsScene) -> None:
    """Expect the file and what to do about it, also with how many batches were looked at."""
    path = path_of(publish_all(scene)[0])
    path.unlink()
    ended = run("orders")
    assert ended.exit_code == 3
    assert "FAIL part_files" in ended.output
    assert f"{path} is missing" in ended.output
    assert "Materialize the partition again" in ended.output
    assert told("--last", "2")["part_files"]["batches_checked"] == 2
    assert told("--last", "2")["part_files"]["passed"]


def test_verify_finds_a_changed_byte_only_when_it_reads(scene: DefsScene) -> None:
    """Expect `--deep` to add the check of checksums."""
    path = path_of(publish_all(scene)[0])
    path.write_bytes(b"X" + path.read_bytes()[1:])
    assert run().exit_code == 0
    ended = run("--deep", "--all")
    assert ended.exit_code == 3
    assert told("--deep")["checksums"]["problems"] == 1


def test_verify_warns_without_calling_batches_unfit(scene: DefsScene) -> None:
    """Expect a warning to be told apart, and the same exit code."""
    publish_all(scene, quarantined=1)
    ended = run()
    assert ended.exit_code == 3
    assert "warn quarantine" in ended.output
    assert told()["quarantine"]["severe"] is False


def pointers(scene: DefsScene) -> list[Path]:
    """List the manifest files, by name."""
    return sorted(Path(to_path(scene.stream.storage.root), "manifests").iterdir())


def flip(one: Path, _: Path) -> None:
    """Flip one bit."""
    octets = bytearray(one.read_bytes())
    octets[50] ^= 1
    one.write_bytes(octets)


def cut(one: Path, _: Path) -> None:
    """Leave out the end."""
    one.write_bytes(one.read_bytes()[:-1])


def cut_line(one: Path, _: Path) -> None:
    """Leave out a line, and make the one before longer."""
    one.write_bytes(one.read_bytes()[:-2] + b".\n")


def swap(one: Path, other: Path) -> None:
    """Let two files change places."""
    octets = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(octets)


@pytest.mark.parametrize(
    ("damage", "wrong", "said"),
    [
        (flip, 1, "was published"),
        (cut, 1, "has 99 B, published: 100 B"),
        (cut_line, 1, "was published, and has other records: 14, published: 15"),
        (swap, 2, "was published"),
    ],
)
def test_verify_names_the_file_that_is_not_as_it_was_published(
    scene: DefsScene, damage: Callable[[Path, Path], None], wrong: int, said: str
) -> None:
    """Expect each kind of damage, and how many batches have it."""
    *_, other, one = map(path_of, publish_all(scene))
    damage(one, other)
    found = told("--deep")["checksums"]
    assert (found["passed"], found["severe"], found["batches_wrong"]) == (False, True, wrong)
    assert f": {one} has " in found["worst"]
    assert found["worst"].endswith(said)


def test_verify_compares_pointer_files_with_the_inventory(scene: DefsScene) -> None:
    """Expect one that is gone, one of another attempt, and one that lists a file too few."""
    publish_all(scene)
    assert told()["pointers"]["passed"]
    first, second, third, _ = pointers(scene)
    first.unlink()
    assert f"{first} is missing" in told()["pointers"]["worst"]
    execute(scene.database, "UPDATE batch_pipeline.attempt SET pointer_uri = NULL WHERE id = 1")
    second.write_text(third.read_text())
    third.write_text(third.read_text().replace('"records": 15', '"records": 14'))
    found = told()["pointers"]
    assert (found["passed"], found["severe"], found["batches_wrong"]) == (False, False, 3)


def moved_into(bucket: str, scene: DefsScene) -> list[str]:
    """Move what is published into S3, let inventory and manifest files know, and give the URIs."""
    uris = []
    for path in map(path_of, publish_all(scene)):
        uris.append(f"{bucket}/batches/{path.name}")
        S3.put(uris[-1], path.read_bytes())
        path.unlink()
        [pointer] = [one for one in pointers(scene) if path.name in one.read_text()]
        pointer.write_text(pointer.read_text().replace(to_uri(path), uris[-1]))
        execute(
            scene.database,
            "UPDATE batch_pipeline.part_file SET uri = :new WHERE uri = :old",
            new=uris[-1],
            old=to_uri(path),
        )
    return uris


def test_verify_looks_at_part_files_in_s3(scene: DefsScene, bucket: str) -> None:
    """Expect objects to be judged as files are, and called by their URIs."""
    uris = moved_into(bucket, scene)
    assert run("--deep").exit_code == 0
    S3.put(uris[0], content(uris[0]).swapcase())
    S3.delete(uris[1])
    ended = run("--deep")
    assert ended.exit_code == 3
    assert f"{uris[1]} is missing" in ended.output
    assert told("--deep")["checksums"]["problems"] == 2
    assert told()["part_files"]["problems"] == 2  # the SHA-256 that S3 keeps is compared


def test_verify_without_the_store_answers_nothing(
    scene: DefsScene, bucket: str, faults: Faults
) -> None:
    """Expect the checks to say why they have no answer, and no file to be blamed."""
    moved_into(bucket, scene)
    faults.refuse(403, "AccessDenied")
    ended = run()
    assert ended.exit_code == 3
    assert "the store refuses s3:GetObject" in ended.output
    assert "Do not load these batches" not in ended.output
