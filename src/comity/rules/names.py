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
_MARK_LENGTH: Final = 8


def public_name(server: str, name: str) -> str:
    """`server__name`, made to fit; a changed one ends in a mark made from the original."""
    plain = f"{server}{SEPARATOR}{name}"
    fitting = _UNFIT.sub("_", plain)
    if fitting == plain and len(plain) <= LONGEST:
        return plain
    mark = hashlib.sha256(f"{server}\0{name}".encode("utf-8", "replace")).hexdigest()
    return f"{fitting[: LONGEST - _MARK_LENGTH - 1]}_{mark[:_MARK_LENGTH]}"
