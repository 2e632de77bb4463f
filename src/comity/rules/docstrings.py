"""What a function's docstring says of it and of each of its parameters.

Read are the two forms that most code has: `:param name: text`, and a section `Args:` of indented
`name: text` lines. Whatever is in neither form is description.
"""

import inspect
import re
from dataclasses import dataclass, field
from typing import Final

_PARAMETER: Final = re.compile(r":param\s+(?:[^\s:]+\s+)?(\w+)\s*:\s*(.*)")
_SECTION: Final = re.compile(
    r"(Args|Arguments|Parameters|Returns|Yields|Raises|Example|Examples|Notes?)\s*:"
)
_TAKES: Final = frozenset({"Args", "Arguments", "Parameters"})
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^()]*\))?\s*:\s*(.*)")
_FIELD: Final = re.compile(r":\w+[^:]*:")


@dataclass(slots=True)
class Told:
    """What was written down: of the whole, and of each parameter by its name."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict[str, str])


def read(docstring: str | None) -> Told:
    told = Told()
    lines = inspect.cleandoc(docstring or "").splitlines()
    about: list[str] = []
    section = ""
    current: str | None = None
    for line in lines:
        heading = _SECTION.fullmatch(line)
        if heading is not None:
            section, current = heading[1], None
        elif _FIELD.match(line):
            section, current = "fields", _parameter(line, told)
        elif section == "" or (line.strip() and not line[0].isspace() and section != "fields"):
            section = ""
            about.append(line)
        elif section in _TAKES or section == "fields":
            current = _entry(line, section, current, told)
    told.description = "\n".join(about).strip()
    return told


def _parameter(line: str, told: Told) -> str | None:
    found = _PARAMETER.match(line)
    if found is None:
        return None
    told.parameters[found[1]] = found[2].strip()
    return found[1]


def _entry(line: str, section: str, current: str | None, told: Told) -> str | None:
    """A line in a section: a parameter of its own, or more about the one before."""
    found = _ENTRY.fullmatch(line.strip()) if section in _TAKES else None
    indent = len(line) - len(line.lstrip())
    if found is not None and (current is None or indent <= INDENT):
        told.parameters[found[1]] = found[2].strip()
        return found[1]
    if current is not None and line.strip():
        told.parameters[current] = f"{told.parameters[current]} {line.strip()}".strip()
    return current


INDENT: Final = 4
