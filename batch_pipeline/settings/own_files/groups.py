"""The files of a place by what their names tell; of most only size and order are kept."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from os.path import commonprefix

from batch_pipeline.encode.readers.formats import reader_for_extension
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import shown
from batch_pipeline.model.stream import FileKind, common_word, kind_of, pattern


@dataclass(slots=True, kw_only=True)
class Group:
    """Files of one kind, in the order of the listing; `endings` are as written, with compression.

    `samples` are the first files that are not empty, and then ever fewer of the later ones; `last`
    is the last one of all.
    """

    kind: FileKind
    endings: set[str] = field(default_factory=set)
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    order: "array[int]" = field(default_factory=lambda: array("q"))
    samples: list[LandedFile] = field(default_factory=list)
    last: LandedFile | None = None
    prefix: str | None = None
    filled: int = 0

    def add(self, file: LandedFile, name: str, ending: str, number: int) -> None:
        """Take in a file that came as the so many-th of the listing."""
        stem = name.removesuffix(ending)
        both = stem if self.prefix is None else self.prefix, stem
        self.prefix = commonprefix(both)  # noqa: RUF071 - letters, not folders, are meant
        size = file.size_bytes or 0
        self.endings.add(ending)
        self.sizes.append(size)
        self.order.append(number)
        if size:
            self.last = file
            self.filled += 1
            if self.filled & (self.filled - 1) == 0:  # 1, 2, 4, 8, …
                self.samples.append(file)

    @property
    def word(self) -> str:
        """What their names begin with: more than the word of their kind, where all of several do.

        A single file does not tell which part of its name changes.
        """
        word = self.kind.word
        if not word or len(self.sizes) < 2 or self.prefix is None:
            return word
        return max(word, common_word(self.prefix), key=len)

    @property
    def patterns(self) -> list[str]:
        """Name patterns of these files and of those that will land beside them."""
        return [pattern(self.word, ending) for ending in sorted(self.endings)]


def grouped(files: Iterable[LandedFile]) -> list[Group]:
    """Group files by ending and leading word, the groups with most files, then bytes, first."""
    groups: dict[FileKind, Group] = {}
    for number, file in enumerate(files):
        name = shown(file.uri).rpartition("/")[2]
        kind, ending = kind_of(name)
        if kind not in groups:
            groups[kind] = Group(kind=kind)
        groups[kind].add(file, name, ending, number)
    return sorted(groups.values(), key=_rank)


def weights(groups: Iterable[Group]) -> Iterator[int]:
    """Give the sizes of the files of some groups in the order of the listing."""
    each = (zip(one.order, one.sizes, strict=True) for one in groups)
    return (size for _, size in merge(*each))


def _rank(group: Group) -> tuple[bool, int, int, list[str]]:
    is_unknown = reader_for_extension(group.kind.ending) is None
    return is_unknown, -len(group.sizes), -sum(group.sizes), group.patterns
