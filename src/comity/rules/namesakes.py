"""Which names could be taken for one another, among all the tools that there are. (attack 3)

Rule 1: of two tools whose names look alike, the one that was accepted first keeps its name.
Rule 2: two servers may call a tool the same, or write one name in two styles: in a list each stands
        behind the name of its server. Inside one server not even the style may differ.
"""

import re
import unicodedata
from typing import Final

type Place = tuple[str, str]
"""A tool: its server, and that server's name for it."""

_SEPARATORS: Final = re.compile(r"[\s\-_.:/]+")
_LATIN: Final = str.maketrans(
    # Cyrillic and Greek letters that are drawn as Latin ones, in small letters.
    "абвеёзікмнорѕстухуһԁјԛԝѵгпαβγεζηικνορτυχωсу",
    "a6bee3ikmhopsctyxyhdjqwvrnabyezniknoptuxwcy",
)
_DIGITS: Final = str.maketrans("0135i|!$\u0131łøđ", "oleslllsllod")
_DOUBLES: Final = (("rn", "m"), ("vv", "w"))


def skeleton(name: str) -> str:
    """What is left of a name to somebody who only glances at it."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    letters = "".join(each for each in plain if not unicodedata.combining(each))
    glanced = letters.translate(_LATIN).translate(_DIGITS)
    for pair, one in _DOUBLES:
        glanced = glanced.replace(pair, one)
    return _SEPARATORS.sub("_", glanced)


def style_less(name: str) -> str:
    """A name without what is a habit of its author: capitals, and how words are set apart."""
    return _SEPARATORS.sub("_", name.casefold())


class Namesakes:
    """All names by how they look; a change of one server touches only what looks like its names."""

    def __init__(self) -> None:
        self._alike: dict[str, dict[Place, float]] = {}

    def add(self, server: str, name: str, since: float) -> None:
        """A tool is there, and has been accepted since then."""
        self._alike.setdefault(skeleton(name), {})[server, name] = since

    def remove(self, server: str, name: str) -> None:
        look = skeleton(name)
        places = self._alike.get(look, {})
        places.pop((server, name), None)
        if not places:
            self._alike.pop(look, None)

    def alike(self, name: str) -> list[Place]:
        """Every tool whose name looks like this one, or is the same."""
        return list(self._alike.get(skeleton(name), ()))

    def rival(self, server: str, name: str) -> Place | None:
        """The tool that this one could be taken for, and that was there before it."""
        places = self._alike.get(skeleton(name), {})
        if len(places) < 2:
            return None
        mine = _rank((server, name), places.get((server, name), float("inf")))
        before = [
            (_rank(place, since), place)
            for place, since in places.items()
            if _is_lookalike((server, name), place)
        ]
        first, rival = min(before, default=(mine, None))
        return rival if first < mine else None


def _is_lookalike(one: Place, other: Place) -> bool:
    if one[0] == other[0]:
        return one[1] != other[1]
    return style_less(one[1]) != style_less(other[1])


def _rank(place: Place, since: float) -> tuple[float, int, Place]:
    """Who was first; of two that came together, whose name has fewer letters that are not plain."""
    return since, len(re.sub(r"[a-z_-]", "", place[1])), place
