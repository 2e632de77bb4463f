"""Which URI template a URI fits, found by its literal beginning. (RFC 6570, MCP §5.2)

A template is literal parts with gaps between them. A gap is either of one path segment or, with an
operator (`{+path}`, `{?query}`), of anything. All the places where a match may have come to are
followed at once, as the bits of one number, so nothing is tried twice whatever a server wrote.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[^{}]*\}")
SEPARATORS: Final = "/?#"
LONGEST: Final = 8192


@dataclass(frozen=True, slots=True)
class Template:
    """`literals[0] gap literals[1] gap …`; `wide[i]` tells whether gap i may hold anything."""

    literals: tuple[str, ...]
    wide: tuple[bool, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        literals, wide, end = [""], list[bool](), 0
        for expression in _EXPRESSION.finditer(text[:LONGEST]):
            literals[-1] += text[end : expression.start()]
            end = expression.end()
            if wide and not literals[-1]:
                # Two gaps side by side are one.
                wide[-1] = wide[-1] or bool(expression[1])
            else:
                wide.append(bool(expression[1]))
                literals.append("")
        literals[-1] += text[end:]
        return cls(tuple(literals), tuple(wide))

    def fits(self, uri: str) -> bool:
        """Whether the template can make this URI."""
        head, tail = self.literals[0], self.literals[-1]
        if not self.wide:
            return uri == head
        if len(uri) > LONGEST or len(uri) < len(head) + len(tail):
            return False
        if not (uri.startswith(head) and uri.endswith(tail)):
            return False
        between = uri[len(head) : len(uri) - len(tail)]
        return _matches(between, self.literals[1:-1], self.wide)


def _matches(text: str, literals: tuple[str, ...], wide: tuple[bool, ...]) -> bool:
    """Whether the text is `gap literal gap … gap`; bit i tells that a match may stand before i."""
    where: dict[str, int] = {}
    for place, character in enumerate(text):
        where[character] = where.get(character, 0) | 1 << place
    every = (1 << len(text) + 1) - 1
    inside = every >> 1 & ~sum(where.get(character, 0) for character in SEPARATORS)
    reached = 1
    for number, gap_is_wide in enumerate(wide):
        if gap_is_wide:
            # Anything from the first place on.
            reached = every & -(reached & -reached)
        else:
            # Adding carries each place through to the end of the segment it stands in.
            reached |= ((reached & inside) + inside) ^ inside
        for character in literals[number] if number < len(literals) else "":
            reached = (reached & where.get(character, 0)) << 1
        if not reached:
            return False
    return bool(reached >> len(text) & 1)


class Index[Owner]:
    """Templates with their owners, found by the URI they fit."""

    def __init__(self) -> None:
        self._by_head: dict[str, list[tuple[Template, Owner]]] = {}
        self._heads_of_length: dict[int, int] = {}

    def add(self, text: str, owner: Owner) -> None:
        template = Template.parse(text)
        head = template.literals[0]
        if head not in self._by_head:
            self._by_head[head] = []
            self._heads_of_length[len(head)] = self._heads_of_length.get(len(head), 0) + 1
        self._by_head[head].append((template, owner))

    def remove(self, text: str, owner: Owner) -> None:
        head = Template.parse(text).literals[0]
        kept = [entry for entry in self._by_head.get(head, []) if entry[1] != owner]
        if kept:
            self._by_head[head] = kept
        elif self._by_head.pop(head, None) is not None:
            self._heads_of_length[len(head)] -= 1
            if not self._heads_of_length[len(head)]:
                del self._heads_of_length[len(head)]

    def find(self, uri: str) -> Owner | None:
        """The owner of the template with the longest literal beginning that the URI fits."""
        return next(self.fitting(uri), None)

    def fitting(self, uri: str) -> Iterator[Owner]:
        """The owners of all templates that the URI fits, those with longer beginnings first."""
        if len(uri) > LONGEST:
            return
        for length in sorted(self._heads_of_length, reverse=True):
            for template, owner in self._by_head.get(uri[:length], ()):
                if template.fits(uri):
                    yield owner
