"""What a terminal shows, as a page has it: each command, and what it is to say.

A block of the language `console` is one terminal. A line that begins with `$ ` is a command; the
lines up to the next one are its output, in which a line `…` stands for any lines and `…` inside a
line for any text.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One command, and the output that the page shows for it."""

    command: str
    expected: tuple[str, ...]

    def is_met_by(self, said: str) -> bool:
        return re.fullmatch(self.pattern, said.strip("\n") + "\n") is not None

    @property
    def pattern(self) -> str:
        """Trailing blanks do not count: a table pads its last column."""
        parts: list[str] = []
        for line in self.expected:
            if line == "…":
                parts.append(r"(?:.*\n)*?")
            else:
                words = [re.escape(word) for word in line.split("…")]
                parts.append(r"[^\n]*".join(words) + r"[ ]*\n")
        return "".join(parts) or r"(?:.*\n)*"


def steps_of(text: str) -> list[Step]:
    steps: list[Step] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:], ()))
        elif steps and (line or steps[-1].expected):
            last = steps[-1]
            steps[-1] = Step(last.command, (*last.expected, line.rstrip()))
    return [Step(step.command, _without_blank_end(step.expected)) for step in steps]


def _without_blank_end(lines: tuple[str, ...]) -> tuple[str, ...]:
    while lines and not lines[-1]:
        lines = lines[:-1]
    return lines
