"""Files that `dg scaffold defs` writes for a new stream."""

import tempfile
from pathlib import Path

import dagster as dg
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.config.stream_file import read_component, read_stream_file
from batch_pipeline.defs.component import StreamChoices, StreamScaffolder
from batch_pipeline.model.stream import SourceFormat

FOLDERS = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=30
).filter(lambda name: name not in {".", ".."})


def scaffold(
    folder: Path, root: Path | None = None, *, append: bool = False, **params: str
) -> Path:
    """Scaffold a stream into a new folder, or append it to the file there; return the file."""
    folder.mkdir(parents=True, exist_ok=append)
    path = folder / "defs.yaml"
    StreamScaffolder().scaffold(
        dg.ScaffoldRequest(
            type_name="batch_pipeline.BatchStream",
            target_path=path if append else folder,
            scaffold_format="yaml",
            project_root=root,
            params=StreamChoices.model_validate(params),
            append=append,
        )
    )
    return path


def test_scaffolded_stream_is_named_after_its_folder(tmp_path: Path) -> None:
    """The landing is beside the file; part files are stored outside of the package."""
    path = scaffold(tmp_path / "src/shop/defs/sales", tmp_path)
    stream = read_stream_file(path)
    assert stream.name == "sales"
    assert stream.source.place == (path.parent / "landing").as_uri()
    assert stream.storage.root == (tmp_path / "batches/sales").as_uri()


def test_scaffolded_file_has_the_given_parameters(tmp_path: Path) -> None:
    """Values are quoted where YAML requires it."""
    path = scaffold(
        tmp_path / "a", stream="2023", source_uri="/data/in: #1", source_format="parquet"
    )
    stream = read_stream_file(path)
    assert (stream.name, stream.source.place) == ("2023", "file:///data/in%3A%20%231")
    assert stream.source.format is SourceFormat.PARQUET


@settings(max_examples=settings().max_examples // 4)
@given(name=FOLDERS, stream=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", fullmatch=True))
def test_scaffolded_file_loads_for_all_folder_and_stream_names(name: str, stream: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if len(name.encode()) <= 255:
            assert read_stream_file(scaffold(Path(folder) / "unnamed" / name)).name
        assert read_stream_file(scaffold(Path(folder) / "named", stream=stream)).name == stream


def test_scaffold_appends_a_second_stream_to_a_file(tmp_path: Path) -> None:
    scaffold(tmp_path / "sales")
    path = scaffold(tmp_path / "sales", append=True, stream="refunds")
    names = [read_component(path, number=n, fill=lambda value: value).name for n in (0, 1)]
    assert names == ["sales", "refunds"]
