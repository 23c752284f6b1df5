"""The places below which the files of a stream lie: which locations that others write are read.

Text only: whether a name on a disk is a link that leads elsewhere is found out by who opens it.
"""

import re
from dataclasses import dataclass

from batch_pipeline.domain.file_range import MARK
from batch_pipeline.domain.location import is_object

_DOTS = re.compile(rf"/\.{{1,2}}(?=/|{MARK}|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """URIs of folders and of prefixes of keys, and the key of the stream file that names them.

    Where they are `closed`, nothing else is read. Where they are not, a location below none of them
    was checked by who registered it, and is read if no link is on the way to it.
    """

    uris: tuple[str, ...] = ()
    key: str = "source.roots"
    closed: bool = True

    def hold(self, location: str) -> bool:
        """Tell whether a location lies below one of them, as it is written.

        A name begins behind the slash: `/data/in` does not hold `/data/internal`. A key with `.` or
        `..` between slashes lies nowhere: what is on the way to the store may resolve them.
        """
        is_below = any(location.startswith(f"{one.rstrip('/')}/") for one in self.uris)
        return is_below and not has_dots(location)

    def refuse(self, location: str) -> bool:
        """Tell whether a location is not read, whatever is there."""
        return not self.hold(location) and (self.closed or has_dots(location))

    @property
    def advice(self) -> str:
        """What keeps a file outside, and what lets it in."""
        return f"lies outside of `{self.key}`, so it was not opened; move it, or add its folder"


def has_dots(location: str) -> bool:
    """Tell whether `.` or `..` stands between the slashes of the key of an object."""
    if not is_object(location):
        return False  # of a disk it is its real path that counts
    return _DOTS.search(location) is not None
