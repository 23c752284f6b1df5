"""The package executes no data that it reads and builds no code from text."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "batch_pipeline"
MODULES = {"pickle", "cPickle", "marshal", "shelve", "cloudpickle", "dill", "joblib", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__", "mktemp", "PyExtensionType", "popen"}
# The exceptions, and why.
ALLOWED = {
    # The bytes are a function of this package: the driver pickles it, and Spark sends it to the
    # executors of the same session, as it sends all code. No other data is unpickled.
    ("spark/executor_archive.py", "cloudpickle"),
    ("spark/executor_archive.py", "pickle"),
}


def banned(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module may not use."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=module, names=names):
                yield from ((module or "").partition(".")[0], *(alias.name for alias in names))
            case ast.Call(func=ast.Name(id=name)):
                yield from ([name] if name in CALLS else [])
            case ast.Call(func=ast.Attribute(attr="system", value=ast.Name(id="os"))):
                yield "os.system"
            case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="yaml"))):
                yield from ([f"yaml.{name}"] if "load" in name and "safe" not in name else [])
            case ast.Attribute(attr=name):
                yield from ([name] if name in {"PyExtensionType", "mktemp"} else [])
            case ast.keyword(arg="shell" | "allow_pickle" as name):
                yield str(name)
            case _:
                pass


def used(source: str) -> set[str]:
    """Return the banned names in Python source."""
    words = {*MODULES, *CALLS, "os.system", "shell", "allow_pickle"}
    return {name for name in banned(ast.parse(source)) if name in words or name[:5] == "yaml."}


@pytest.mark.guarantee("S1")
def test_package_executes_no_data() -> None:
    uses = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        for name in used(path.read_text(encoding="utf-8"))
    }
    assert uses == ALLOWED


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import pickle", "pickle"),
        ("from pickle import loads", "pickle"),
        ("from pyspark import cloudpickle", "cloudpickle"),
        ("def f():\n    import marshal", "marshal"),
        ("eval(text)", "eval"),
        ("exec(text)", "exec"),
        ("yaml.load(text, Loader=yaml.Loader)", "yaml.load"),
        ("yaml.full_load(text)", "yaml.full_load"),
        ("os.system(text)", "os.system"),
        ("run(text, shell=True)", "shell"),
        ("pa.PyExtensionType.__init__(self)", "PyExtensionType"),
        ("np.load(file, allow_pickle=True)", "allow_pickle"),
        ("tempfile.mktemp()", "mktemp"),
    ],
)
def test_banned_names_are_detected(source: str, name: str) -> None:
    assert used(source) == {name}
