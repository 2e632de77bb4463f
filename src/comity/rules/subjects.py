"""What a subject of the bus may look like: the same wherever the bus runs.

A subject ends up in a line of somebody's protocol, so what is none is refused before it gets there.
"""

import re
from typing import Final

LONGEST: Final = 512

_PART: Final = r"[A-Za-z0-9_-]+"
_SUBJECT: Final = re.compile(rf"{_PART}(?:\.{_PART})*")
_PATTERN: Final = re.compile(rf"(?:{_PART}|\*)(?:\.(?:{_PART}|\*))*(?:\.>)?|>")
_WILD: Final = {"*": r"[^.]+", ">": r".+"}


def is_subject(text: str) -> bool:
    """To publish on."""
    return len(text) <= LONGEST and _SUBJECT.fullmatch(text) is not None


def is_pattern(text: str) -> bool:
    """To subscribe to: a part may be `*`, and the last one `>`."""
    return len(text) <= LONGEST and _PATTERN.fullmatch(text) is not None


def is_plain(pattern: str) -> bool:
    """Whether it stands for one subject alone."""
    return "*" not in pattern and ">" not in pattern


def compiled(pattern: str) -> re.Pattern[str]:
    """`*` is one part, and `>` all that follow, of which there is at least one."""
    assert is_pattern(pattern)
    return re.compile(r"\.".join(_WILD.get(part, part) for part in pattern.split(".")))
