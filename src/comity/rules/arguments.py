"""Every text in a call's arguments, and where it stands."""

from typing import Final, NamedTuple, cast

MOST_VALUES: Final = 10_000
MOST_CHARACTERS: Final = 256 * 1024
"""What can be looked at closely without holding the event loop."""

_SHOWN: Final = 120

type _Waiting = tuple[str, str, object, int]


class Found(NamedTuple):
    """One text among the arguments; `listed` is how many lists it stands in below its name."""

    where: str
    name: str
    text: str
    listed: int = 0


def texts(arguments: object, most_characters: int | None = MOST_CHARACTERS) -> list[Found] | None:
    """Every text, the names of inner members too; None where there are too many to look at.

    Who looks at the beginnings of texts alone does not mind how long they are.
    """
    found: list[Found] = []
    values = characters = 0
    waiting: list[_Waiting] = [("", "", arguments, 0)]
    while waiting:
        where, name, value, listed = waiting.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
            found.append(Found(where, name, value, listed))
        elif isinstance(value, dict | list):
            waiting += _inside(where, name, cast("dict[str, object] | list[object]", value), listed)
        if values + len(waiting) > MOST_VALUES:
            return None
        if most_characters is not None and characters > most_characters:
            return None
    return found


def _inside(
    where: str, name: str, value: dict[str, object] | list[object], listed: int
) -> list[_Waiting]:
    """What is in an object or a list, the last first."""
    if isinstance(value, list):
        numbered = enumerate(value)
        inner = [
            (f"{where}[{number}]"[:_SHOWN], name, each, listed + 1) for number, each in numbered
        ]
        return inner[::-1]
    inside: list[_Waiting] = []
    for key, each in value.items():
        inside.append(((f"{where}.{key}" if where else key)[:_SHOWN], key, each, 0))
        if where:  # a tool's own argument names are its author's; a map's are the caller's
            inside.append((where, "", key, 0))
    return inside[::-1]
