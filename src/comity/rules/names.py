"""Public names of offers: `server__name`, in letters every client takes, at most 64 long. (D-96)

Rule 1: a name is a pure function of server and offer, so it is the same on every node and day.
Rule 2: what had to be changed to fit bears a mark of what it was; two offers never share a name.
"""

import hashlib
import re
from typing import Final

LONGEST: Final = 64
SEPARATOR: Final = "__"
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")
_MARK_LENGTH: Final = 12
_MARKED: Final = re.compile(r"_[0-9a-f]{12}\Z")


def public_name(server: str, name: str) -> str:
    """`server__name`, made to fit; a changed one ends in a mark made from the original."""
    plain = f"{server}{SEPARATOR}{name}"
    fitting = _UNFIT.sub("_", plain)
    if fitting == plain and len(plain) <= LONGEST and not _is_ambiguous(server, name):
        return plain
    # The length of the server's name keeps apart what a separator inside of it would confuse.
    told = f"{len(server)}:{server}{name}".encode("utf-8", "surrogatepass")
    mark = hashlib.sha256(told).hexdigest()[:_MARK_LENGTH]
    return f"{fitting[: LONGEST - _MARK_LENGTH - 1]}_{mark}"


def public_prefix(server: str) -> str:
    """What stands before the separator in the public names of a server's offers."""
    return _UNFIT.sub("_", server)


def _is_ambiguous(server: str, name: str) -> bool:
    """Whether another server and name could be read into the plain form, or a mark."""
    return f"{server}{SEPARATOR}".find(SEPARATOR) != len(server) or bool(_MARKED.search(name))
