"""A store behind Arrow's face: file systems of Arrow's own, on a folder or out of order."""

from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from batch_pipeline.domain.item import FoundFile
from batch_pipeline.stores import arrow_store
from batch_pipeline_tests.integration.places import found


class OtherStore:
    """Buckets of `gs://`, which are folders of a disk; `uri` is a prefix in one of them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.uri = "gs://landed/in"
        self._folder = folder
        self._patch = patch
        (folder / "landed").mkdir(parents=True)
        disk = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
        self._stand_in(disk)

    def put(self, name: str, data: bytes = b"id\n1\n") -> FoundFile:
        """Write an object and give what a listing says of it."""
        self.write(name, data)
        return found(f"{self.uri}/{name}")

    def write(self, name: str, data: bytes = b"") -> None:
        """Write an object that need not be there as such."""
        path = self._folder / "landed/in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def remove(self, name: str) -> None:
        """Remove an object."""
        (self._folder / "landed/in" / name).unlink()

    def names(self) -> list[str]:
        """List the names of all objects below."""
        paths = (self._folder / "landed/in").rglob("*")
        return sorted(path.name for path in paths if path.is_file())

    def fail(self, error: Exception) -> None:
        """Let everything that is asked fail from now on."""
        self._stand_in(_Failing(error))

    def _stand_in(self, system: Any) -> None:
        self._patch.setattr(arrow_store, "_made", {})
        self._patch.setitem(
            arrow_store.FILE_SYSTEMS, "gs", lambda root: (system, root.removeprefix("gs://"))
        )


class _Failing:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def get_file_info(self, _asked: Any) -> Any:
        raise self._error

    def open_input_file(self, _path: str) -> Any:
        raise self._error
