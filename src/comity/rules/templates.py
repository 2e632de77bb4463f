"""Which URI template a URI fits, found by its literal beginning. (RFC 6570, MCP §5.2)

A template is literal parts with gaps between them. A gap is either of one path segment or, with an
operator (`{+path}`, `{?query}`), of anything. Taking the first place where the next literal stands
is always right, because what it leaves goes to the next gap; so matching is linear and nothing is
tried twice, whatever a server wrote.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[^{}]*\}")
_ENDS_A_SEGMENT: Final = re.compile(r"[/?#]")
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
        if len(uri) > LONGEST or not uri.startswith(head):
            return False
        place, last = len(head), len(self.wide) - 1
        for number, wide in enumerate(self.wide):
            literal = self.literals[number + 1]
            if number == last:
                found = len(uri) - len(tail) if uri.endswith(tail) else -1
            else:
                found = uri.find(literal, place)
            if found < place or not (wide or not _ENDS_A_SEGMENT.search(uri, place, found)):
                return False
            place = found + len(literal)
        return True


class Index[Owner]:
    """Templates with their owners, found by the URI they fit."""

    def __init__(self) -> None:
        self._by_head: dict[str, list[tuple[Template, Owner]]] = {}

    def add(self, text: str, owner: Owner) -> None:
        template = Template.parse(text)
        self._by_head.setdefault(template.literals[0], []).append((template, owner))

    def remove(self, text: str, owner: Owner) -> None:
        head = Template.parse(text).literals[0]
        kept = [entry for entry in self._by_head.get(head, []) if entry[1] != owner]
        if kept:
            self._by_head[head] = kept
        else:
            self._by_head.pop(head, None)

    def find(self, uri: str) -> Owner | None:
        """The owner of the template with the longest literal beginning that the URI fits."""
        if len(uri) > LONGEST:
            return None
        for length in sorted({len(head) for head in self._by_head}, reverse=True):
            for template, owner in self._by_head.get(uri[:length], ()):
                if template.fits(uri):
                    return owner
        return None
