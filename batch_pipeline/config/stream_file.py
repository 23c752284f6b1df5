"""Stream files: read them, with the line of each problem, and write new ones.

Sections: files and folders, descriptions of problems, YAML with lines, new files.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from batch_pipeline.config.attribute_types import REFUSAL
from batch_pipeline.config.stream_attributes import StreamAttributes, alternatives
from batch_pipeline.config.units import format_bytes
from batch_pipeline.model.encoding import Format
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    StreamFileError,
    closest,
    ended,
)
from batch_pipeline.model.stream import Source, Stream

FILE_NAME = "defs.yaml"
COMPONENT = "batch_pipeline.BatchStream"
_RESOURCES = "batch_pipeline.BatchResources"
_SHOWN_PROBLEMS = 10
_NEXT_STEP = "The stream was not loaded. Correct the file and run again."


class StreamFile(BaseModel):
    """The whole of a stream file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: Literal["batch_pipeline.BatchStream"]
    attributes: StreamAttributes


class Problem(NamedTuple):
    """A problem in the text, at a line counted from 1 (None: the whole file)."""

    line: int | None
    text: str


class YamlProblemError(Exception):
    """The text is not a usable YAML document; `problem` says where and why."""

    def __init__(self, line: int | None, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(line, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed document: its value, its nodes if parsed from text, and duplicate keys."""

    value: Any
    root: yaml.Node | None = None
    duplicates: tuple[Problem, ...] = ()
    _entries: dict[int, dict[str, tuple[yaml.Node, yaml.Node]]] = field(default_factory=dict)

    def line(self, path: Sequence[Hashable], *, of_key: bool = False) -> int:
        """Return the line of a value (or its key), or of its nearest ancestor in the text."""
        node, key_line = self.root, 1
        for key in path:
            key_node, node = self._child(node, key)
            if key_node is None:
                return key_line
            key_line = _line(key_node)
        return key_line if of_key or node is None else _line(node)

    def _child(
        self, node: yaml.Node | None, key: Hashable
    ) -> tuple[yaml.Node | None, yaml.Node | None]:
        """Return the key and the value of an entry; for a list, the entry itself twice."""
        if isinstance(node, yaml.MappingNode):
            if id(node) not in self._entries:  # cached, since a file may have very many problems
                self._entries[id(node)] = {str(pair[0].value): pair for pair in node.value}
            return self._entries[id(node)].get(str(key), (None, None))
        if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            return node.value[key], node.value[key]
        return None, None


def read_stream_file(path: Path) -> Stream:
    """Read one stream file; paths in it are relative to its folder.

    Raises:
        StreamFileError: it cannot be read or used; lists all problems, each with its line.
    """
    return _read(path, _parse(path))[0]


def find_stream_files(folder: Path) -> list[Path]:
    """List `<folder>/<name>/defs.yaml` by name, without hidden folders; empty without a folder.

    A file that cannot be examined is listed, since reading it raises the reason.

    Raises:
        StreamFileError: the folder cannot be listed.
    """
    try:
        entries = [one for one in sorted(folder.iterdir()) if not one.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        problem = f"the folder cannot be listed ({error.strerror or type(error).__name__})"
        step = "No stream was loaded. Make it readable or correct BATCH_PIPELINE_STREAMS."
        raise StreamFileError(str(folder), None, problem, step) from error
    return [path for one in entries if _may_exist(path := one / FILE_NAME)]


def _may_exist(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return path.parent.name != "lost+found"  # of the root of a volume
    return True


def load_streams(folder: Path) -> dict[str, Stream]:
    """Read all streams of a folder, by name and in the order of their files.

    Raises:
        ConfigurationError: there is no stream file, or no folder.
        StreamFileError, ConfigurationError: files cannot be used, or two name the same stream.
    """
    streams, errors = load_valid_streams(folder)
    if errors:
        raise invalid_files_error(errors)
    if not streams:
        raise no_streams(folder)
    return streams


def load_valid_streams(folder: Path) -> tuple[dict[str, Stream], list[StreamFileError]]:
    """Read all valid streams of a folder, and return the errors of the other files.

    If two files have the same stream, neither is loaded: the owner of the batches is unknown. The
    same applies to names that differ only in `-`, `.` and `_`, which are the same in Dagster.
    """
    read, errors, streams = [], [], {}
    by_identifier: dict[str, list[tuple[Path, str]]] = defaultdict(list)
    try:
        paths = find_stream_files(folder)
    except StreamFileError as error:
        return {}, [error]
    for path in paths:
        try:
            document = _parse(path)
            if not _is_other_component(document.value):
                stream, line = _read(path, document)
                read.append((path, stream, line))
                by_identifier[stream.identifier].append((path, stream.name))
        except StreamFileError as error:
            errors.append(error)
    for path, stream, line in read:
        same = [
            f"{one}{'' if name == stream.name else f' as {name}, the same in Dagster'}"
            for one, name in by_identifier[stream.identifier]
            if one != path
        ]
        if same:
            problem = f"the stream {stream.name} is also described by {', '.join(same)}"
            step = "Neither was loaded. Rename one or remove one of the files, then run again."
            errors.append(StreamFileError(str(path), line, problem, step, stream.name))
        else:
            streams[stream.name] = stream
    return streams, sorted(errors, key=lambda error: error.path)


def _is_other_component(value: Any) -> bool:
    """Return whether a file of a Dagster project has a component that is not a stream."""
    kind = str(value.get("type")) if isinstance(value, dict) else ""
    package, dot, _ = kind.partition(".")
    return kind == _RESOURCES or bool(dot and not closest(package, ["batch_pipeline"]))


def invalid_files_error(errors: Sequence[StreamFileError]) -> StreamFileError | ConfigurationError:
    """Return one error for all stream files that cannot be used."""
    if len(errors) == 1:
        return errors[0]
    return ConfigurationError(
        "\n".join([f"Invalid stream files: {len(errors)}.", *map(str, errors)])
    )


def check_valid(name: str, errors: Iterable[StreamFileError]) -> None:
    """Check that no invalid file describes a stream, by the name in it or else of its folder.

    Raises:
        StreamFileError, ConfigurationError: the file of the stream is not valid.
    """
    mine = [one for one in errors if name == (one.stream or Path(one.path).parent.name)]
    if mine:
        raise invalid_files_error(mine)


def no_streams(folder: Path) -> ConfigurationError:
    """Return the error of a folder without stream files."""
    return ConfigurationError(
        f"There is no stream file <name>/{FILE_NAME} in {folder}. Nothing was done. Run "
        f"`batch-pipeline init --from FOLDER` to create one for your files, set "
        f"BATCH_PIPELINE_STREAMS to another folder, or try `batch-pipeline demo`."
    )


def read_component(path: Path, *, number: int, fill: Callable[[Any], Any]) -> Stream:
    """Read the stream of one component in a file of a Dagster project, counted from 0.

    `fill` replaces templates in the attributes. The other keys of the file are Dagster's.

    Raises:
        StreamFileError: the attributes cannot be used; lists all problems, with lines.
    """
    document = _parse(path, number)
    value: dict[str, Any] = {"type": COMPONENT}
    if isinstance(document.value, dict) and "attributes" in document.value:
        value["attributes"] = fill(document.value["attributes"])
    return _stream_in(path, replace(document, value=value))


def describe_stream(stream: str, *, folder: Path | None = None, **attributes: Any) -> Stream:
    """Describe a stream in Python, with the keys below `attributes` in a stream file.

    Relative paths start at `folder` (default: the current folder).

    Raises:
        ConfigurationError: the attributes cannot be used; lists all problems.
    """
    return stream_of({"stream": stream, **attributes}, folder or Path.cwd())


def stream_of(attributes: Mapping[str, Any], base: Path) -> Stream:
    """Return the stream that these `attributes` of a file define; paths start at `base`.

    Raises:
        ConfigurationError: the attributes cannot be used; lists all problems.
    """
    document = Document(value={"type": COMPONENT, "attributes": dict(attributes)})
    made = _stream_or_problems(document, base)
    if isinstance(made, Stream):
        return made
    problem = ended(";\n  ".join(one.text for one in made[:_SHOWN_PROBLEMS]))
    raise ConfigurationError(
        f"The stream {str(attributes.get('stream', ''))!r}: {problem} It was not defined. "
        f"Correct the arguments."
    )


def _read(path: Path, document: Document) -> tuple[Stream, int]:
    """Return the stream of a file and the line of the stream's name."""
    if not isinstance(document.value, dict):
        text = f"the file has no keys and values; expected `type: {COMPONENT}` and `attributes:`"
        raise _error(path, [Problem(document.line(()), text)])
    return _stream_in(path, document), document.line(("attributes", "stream"))


def _parse(path: Path, number: int | None = None) -> Document:
    try:
        return _parse_yaml(path.read_bytes(), number=number)
    except OSError as error:
        problem = f"the file cannot be read ({error.strerror or type(error).__name__})"
        raise StreamFileError(str(path), None, problem, _NEXT_STEP) from error
    except YamlProblemError as error:
        raise _error(path, [error.problem]) from error


def _stream_in(path: Path, document: Document) -> Stream:
    made = _stream_or_problems(document, path.absolute().parent)
    if isinstance(made, Stream):
        return made
    name = None
    with suppress(KeyError, TypeError):
        name = document.value["attributes"]["stream"]
    raise _error(path, made, name if isinstance(name, str) else None)


def _stream_or_problems(document: Document, base: Path) -> Stream | list[Problem]:
    try:
        file = StreamFile.model_validate(document.value)
        if document.duplicates:
            return [*document.duplicates]
        stream = file.attributes.to_stream(base)
        _check_apart(stream)
    except ValidationError as error:
        problems = [
            _problem(document, one)
            for one in error.errors(include_url=False)
            if one["type"] != "too_short" or not one["input"]  # else its entries are wrong
        ]
        return [*problems, *document.duplicates]
    except InvalidValueError as error:
        line = document.line(("attributes", *_split(error.name)))
        return [Problem(line, str(error).rstrip("."))]
    except ConfigurationError as error:  # such as that of an extra that is not installed
        return [Problem(None, str(error).rstrip("."))]
    return stream


def _error(path: Path, problems: list[Problem], stream: str | None = None) -> StreamFileError:
    first, *others = sorted(problems, key=lambda problem: problem.line or 0)
    texts = [first.text, *(f"line {one.line}: {one.text}" for one in others)]
    if len(texts) > _SHOWN_PROBLEMS:
        texts[_SHOWN_PROBLEMS:] = [f"and {len(texts) - _SHOWN_PROBLEMS} more"]
    return StreamFileError(str(path), first.line, ";\n  ".join(texts), _NEXT_STEP, stream)


def _check_apart(stream: Stream) -> None:
    """Check that the landing does not list files that the stream writes.

    Hidden folders of a landing are not listed, so the stream may write there.

    Raises:
        InvalidValueError: storage is the landing, or lies in it.
    """
    if not isinstance(stream.source, Source):
        return
    landing, root = stream.source.uri, stream.storage.root
    prefix, folder = f"{landing.rstrip('/')}/", f"{root}/"  # the landing may be file:///
    if folder.startswith(prefix) and "/." not in f"/{folder.removeprefix(prefix)}":
        expected = f"a location outside `source.uri` ({landing}); part files would land there"
        raise InvalidValueError("storage.root", root, f"{expected} and be read again")


_KEYS = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]")
# Removed keys and values of earlier releases, with their replacements.
_AS_CSV = (
    "convert the files to csv, or read each line as one cell: `format: csv` with "
    "`options: {names: [line]}` and a `delimiter` and a `quote` that occur in no line"
)
_REMOVED = {
    "`batch.target_seconds`": "choose `batch.max_weight` and `batch.max_count` instead, which "
    "bound a batch",
    "`source.options.columns`": _AS_CSV,
    "`storage.archive`": "copy files elsewhere before `keep_superseded` or `keep_loaded` ends, or "
    "omit these keys to keep all generations",
}
_REMOVED_VALUES = {("`source.format`", "text"): _AS_CSV}
# Replacements for expectations that pydantic states in terms of Python or in more words.
_EXPECTED = {
    "string_type": "text (in quotes if YAML reads it as another type)",
    "int_type": "a whole number",
    "tuple_type": "a list, for example [a, b]",
    "model_type": "keys and values",
    "dict_type": "keys and values",
    "string_too_short": "some text",
    "too_short": "at least one entry",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}


def _problem(document: Document, error: ErrorDetails) -> Problem:
    """Describe a validation error with the line of the key or value."""
    path: tuple[Hashable, ...] = error["loc"]
    context: dict[str, Any] = error.get("ctx", {})
    kind, value, of_key = error["type"], error["input"], True
    if kind == "extra_forbidden":
        text = _unknown_key(path)
    elif kind == "invalid_key":
        text = f"the key {value!r:.80} is not text; {_known_keys(path[:-1])}"
    elif kind == "missing":
        text, path = f"{_dotted(path)} is missing", path[:-1]
    elif kind == REFUSAL:
        if context["key"]:
            path = ("attributes", *_split(context["key"]))
        text, of_key = f"{_dotted(path)} {context['problem']}", False
    elif isinstance(value, str) and (_dotted(path), value) in _REMOVED_VALUES:
        text = f"{_dotted(path)} {value} was removed; {_REMOVED_VALUES[_dotted(path), value]}"
        of_key = False
    else:
        usual = context.get("expected") or error["msg"].removeprefix("Input should be ")
        expected = _EXPECTED.get(kind, usual).format_map(context)
        shown = "keys and values" if isinstance(value, dict) else f"{value!r:.80}"
        of_key = value is None
        text = f"{_dotted(path)} is {'empty' if of_key else shown}; expected {expected}"
    return Problem(document.line(path, of_key=of_key), text)


def _split(dotted: str) -> list[Hashable]:
    """Split `a.b[0].c` into its keys; entries are counted from 0."""
    return [int(index) if index else key for key, index in _KEYS.findall(dotted)]


def _unknown_key(path: tuple[Hashable, ...]) -> str:
    if (removed := _REMOVED.get(_dotted(path))) is not None:
        return f"{_dotted(path)} was removed; {removed}"
    name, place = str(path[-1]), f" in {_dotted(path[:-1])}" if path[:-1] else ""
    alike = [key for key in _fields_at(path[:-1]) if abs(len(key) - len(name)) <= 2]
    close = closest(name, alike)
    hint = f"did you mean `{close}`?" if close else _known_keys(path[:-1])
    return f"unknown key `{name}`{place}; {hint}"


def _known_keys(path: tuple[Hashable, ...]) -> str:
    return f"known keys: {', '.join(_fields_at(path))}"


def _fields_at(path: Sequence[Hashable]) -> dict[str, FieldInfo]:
    """Return the fields of the section at a path, by their keys in the file."""
    model: type[BaseModel] = StreamFile
    is_named = False
    for key in path:
        if isinstance(key, int) or is_named:
            is_named = False
            continue  # an entry of a list, or a name that the user chose: the section is known
        annotation = _fields(model)[str(key)].annotation
        model, is_named = _section_in(annotation), get_origin(annotation) is dict
    return _fields(model)


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _section_in(annotation: Any) -> type[BaseModel]:
    """Return the section of an annotation: itself, or that of the entries of a list or mapping."""
    candidates = [annotation, *get_args(annotation)]
    return next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))


def _dotted(path: tuple[Hashable, ...]) -> str:
    """Format a path for people: relative to `attributes`, with entries counted from 1."""
    if path[-1:] == ("[key]",):
        return f"a key of {_dotted(path[:-2])}"
    keys = path[1:] if len(path) > 1 and path[0] == "attributes" else path
    text = ""
    for key in keys:
        text += f"[{key + 1}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return f"`{text}`"


_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_MOST_VALUES = 100_000  # maximum in a document; values are counted at each alias


def _parse_yaml(raw: bytes, *, number: int | None = None) -> Document:
    """Parse one UTF-8 document; with a `number`, that document of several, counted from 0.

    Only types of the safe loader are constructed.

    Raises:
        YamlProblemError: it is not UTF-8 or YAML, is empty, or holds several documents and
            no `number`.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise YamlProblemError(line, "not UTF-8 text") from error
    try:
        return _parse_text(text, number)
    except yaml.MarkedYAMLError as error:
        raise _syntax_problem(error) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlProblemError(line, "a control character is not allowed in YAML") from error
    except ValueError as error:  # a scalar that looks like a date or number but is not valid
        raise YamlProblemError(None, f"a value cannot be read ({error})") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        problem = "a value does not match its tag, such as `!!int` in front of a word"
        raise YamlProblemError(None, problem) from error
    except RecursionError as error:
        raise YamlProblemError(None, "the values are nested too deeply") from error


def _parse_text(text: str, number: int | None) -> Document:
    loader = yaml.SafeLoader(text)
    if number is None:
        root = loader.get_single_node()
    else:
        loader.check_node()  # skips the start of the stream
        for _ in range(number + 1):
            root = loader.get_node()
    if root is None:
        raise YamlProblemError(None, "the file is empty")
    duplicates: list[Problem] = []
    _check(root, set(), {}, duplicates)
    return Document(value=loader.construct_document(root), root=root, duplicates=tuple(duplicates))


def _check(
    node: yaml.Node, around: set[int], sizes: dict[int, int], duplicates: list[Problem]
) -> int:
    """Return the number of values in a node, counting the values of aliases each time.

    Refuses a value that contains itself, and a few lines that aliases expand to very many values:
    code that traverses such a value, even just to print it, would never finish.
    """
    line = _line(node)
    if id(node) in sizes:
        return sizes[id(node)]
    if id(node) in around:
        raise YamlProblemError(line, "a value contains itself through an alias")
    if isinstance(node, yaml.ScalarNode) and _UNSTORABLE.search(node.value):
        problem = "a text has a NUL or an unpaired surrogate, which PostgreSQL cannot store"
        raise YamlProblemError(line, problem)
    around.add(id(node))
    size = 1 + sum(_check(child, around, sizes, duplicates) for child in _children(node))
    around.discard(id(node))
    if size > _MOST_VALUES:
        raise YamlProblemError(line, f"aliases expand this value to more than {_MOST_VALUES}")
    sizes[id(node)] = size
    duplicates += _duplicates(node)
    return size


def _duplicates(node: yaml.Node) -> Iterator[Problem]:
    """Yield a problem for each duplicate key, at the later key, whose value is used."""
    first_lines: dict[str, int] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.tag == "tag:yaml.org,2002:merge":
            continue  # PyYAML accepts several `<<`
        name, line = str(key.value), _line(key)
        if name in first_lines:
            yield Problem(line, f"`{name}` is given twice (first on line {first_lines[name]})")
        first_lines.setdefault(name, line)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [one for pair in node.value for one in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _syntax_problem(error: yaml.MarkedYAMLError) -> YamlProblemError:
    mark = error.problem_mark or error.context_mark
    text = " ".join(part for part in (error.context, error.problem) if part)
    if error.context == "while scanning an alias" or "alias" in (error.problem or ""):
        text += " (write patterns that start with * in quotes)"
    elif "'\\t'" in text:
        text += " (indent with spaces, not tabs)"
    text = f"not valid YAML: {text}"
    if "single document" in text:
        text = "a second document starts here; the file may contain only one"
    return YamlProblemError(mark.line + 1 if mark else None, text)


# Keys of a new stream file, in this order, with their initial values.
_NEW_KEYS: dict[str, Any] = {
    "stream": None,
    "source": {"uri": None, "include": ["*"], "exclude": None, "format": None, "options": None},
    "batch": {"max_weight": 64 * 2**20, "max_count": 1_000},
    "key_properties": [],
    "schema": None,
    "encoding": {"format": "jsonl", "compression": "gzip"},
    "storage": None,
    "on_bad_record": None,
}
_COMMENTS = {
    "stream": "name of its assets and BATCH messages",
    "source.uri": "the folder where files land: a path, relative to this file, or file:///…",
    "source.include": "patterns of file names, such as orders-*.csv",
    "source.exclude": "patterns of file names to ignore",
    "source.format": "csv, jsonl, json, parquet, avro; auto: detected per file",
    "source.options": "how text files are written",
    "batch.max_weight": "maximum size of its files; a larger file is a batch of its own",
    "batch.max_count": "maximum number of files",
    "key_properties": "columns that together identify a record",
    "encoding.format": alternatives(Format),
    "storage.root": "folder of part files",
}
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:+-]+", re.ASCII)
# Line breaks of YAML that JSON does not escape, and characters that YAML rejects.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def stream_text(
    component: str,
    attributes: Mapping[str, Any],
    *,
    comments: Mapping[str, str] | None = None,
    heading: Sequence[str] = (),
) -> str:
    """Return the text of a stream file with these attributes and those of every new file.

    `comments` override or extend the default comments, by dotted key; `heading` has the lines of a
    comment above the attributes.
    """
    texts = _COMMENTS | dict(comments or {})
    lines = [f"type: {component}", "", *(f"# {_one_line(text)}" for text in heading), "attributes:"]

    def add(indent: str, key: str, value: str) -> None:
        comment = f"  # {_one_line(texts[key])}" if key in texts else ""
        lines.append(f"{indent}{key.rpartition('.')[2]}:{value}{comment}")

    for key, start in _NEW_KEYS.items():
        value = attributes.get(key, start)
        if isinstance(value, Mapping):
            section = {**(start or {}), **value}
            add("  ", key, "")
            for name, one in section.items():
                if one is not None:
                    add("    ", f"{key}.{name}", f" {_written(one, is_size=name == 'max_weight')}")
        elif value is not None:
            add("  ", key, f" {_written(value)}")
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    """Replace characters that would end a comment, or that YAML does not allow."""
    return "".join(one if one.isprintable() else " " for one in text)


def _written(value: Any, *, is_size: bool = False) -> str:
    if is_size:
        return format_bytes(value).replace(" ", "")
    with suppress(ValueError):  # a word such as 2024-02-30, which YAML reads as a date
        is_word = isinstance(value, str) and _PLAIN_WORD.fullmatch(value)
        if is_word and yaml.safe_load(value) == value:
            return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_written(one)}" for key, one in value.items()) + "}"
    text = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
