"""The validator `sandbox`: one simple command of literal words, from a list. (MGP §4.5, attack 12)

What the tool does with its arguments is not known here. So every text is looked at: one that is a
command, or in a tool that has no other may be one, has to be a command that is allowed; and no
other may hold a sign that a shell would act on.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from comity.rules.arguments import Found, texts
from comity.rules.meanings import Meaning, meaning_of
from comity.rules.shell_commands import Commands
from comity.rules.validators import SANDBOX, Rules, Verdict, blocked
from comity.wire.tools import Tool

MOST_CHARACTERS: Final = 8 * 1024
MOST_WORDS: Final = 1024
MOST_TOGETHER: Final = 32 * 1024
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_UNSEEN: Final = frozenset({"Zl", "Zp", "Cs", "Co"})
_ACTED_ON: Final = re.compile(r"[;&|`$<>\\\"'(){}\x00-\x1f\x7f]")
_IN_TEXT: Final = re.compile(r"[;&|`<>\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\$[({A-Za-z_'\"]")
_DELETES: Final = re.compile(
    r"(?:^|[\s/])(?:rm|rmdir|unlink|shred|mkfs\S*|dd|del|rd|format)\s+(?:-|/|~|\*|if=|of=)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a text is not one simple command of literal words."""

    because: str


type ReadWords = Callable[[str], tuple[str, ...] | Unreadable]
"""The words of a command, as a shell would hand them to a program."""


def form_problem(command: str) -> str | None:
    """What is refused of a command before anybody parses it: parsers differ over these."""
    if len(command) > MOST_CHARACTERS:
        return f"it has over {MOST_CHARACTERS} characters"
    if _CONTROL.search(command):
        return "it holds a control character"
    is_plain = command.isascii()
    if not is_plain and any(unicodedata.category(sign) in _UNSEEN for sign in command):
        return "it holds a sign that cannot be seen"
    return None


def examine(tool: Tool, arguments: Mapping[str, object], rules: Rules, read: ReadWords) -> Verdict:
    """Why these arguments may not go to this tool, or None."""
    found = texts(arguments)
    if found is None:
        return blocked(SANDBOX, "its arguments hold more than can be looked at")
    known = [(each, meaning_of(each.where, each.name, rules.arguments)) for each in found]
    named = {meaning for _, meaning in known}
    unnamed_runs = Meaning.COMMAND not in named
    parsed = {Meaning.COMMAND, Meaning.UNKNOWN} if unnamed_runs else {Meaning.COMMAND}
    if sum(len(each.text) for each, meaning in known if meaning in parsed) > MOST_TOGETHER:
        return blocked(SANDBOX, f"its commands have over {MOST_TOGETHER} characters")
    lines = _Lines(Commands(rules.more_commands, rules.fewer_commands), read)
    for each, meaning in known:
        problem = lines.problem(each, meaning, unnamed_runs)
        if problem is not None:
            return blocked(SANDBOX, problem, each.where, *_suggestions(lines.commands))
    problem = lines.whole_problem(arguments, rules)
    return None if problem is None else blocked(SANDBOX, problem, "", *_suggestions(lines.commands))


def _suggestions(commands: Commands) -> tuple[str, ...]:
    names = ", ".join(commands.names()[:60])
    return (
        "Use one command of plain words, with quotes around what holds spaces or signs.",
        f"These commands are allowed: {names}.",
    )


@dataclass(frozen=True, slots=True)
class _Lines:
    commands: Commands
    read: ReadWords

    def problem(self, found: Found, meaning: Meaning, unnamed_runs: bool) -> str | None:
        if meaning is Meaning.TEXT:
            return None
        if meaning is Meaning.COMMAND and found.listed == 0:
            return self._line_problem(found.text)
        if meaning is Meaning.UNKNOWN and unnamed_runs and found.name:
            return self._unnamed_problem(found.text)
        if meaning in (Meaning.COMMAND, Meaning.WORDS):
            return _word_problem(found.text)
        return _text_problem(found.text)

    def _line_problem(self, text: str) -> str | None:
        problem = form_problem(text)
        if problem is not None:
            return problem
        line = self.read(text)
        return line.because if isinstance(line, Unreadable) else self.commands.problem(line)

    def _unnamed_problem(self, text: str) -> str | None:
        """Of what may be anything, a word of it is not repeated: it may be a secret."""
        if " " in text.strip():
            problem = self._line_problem(text)
        else:
            problem = _word_problem(text) or self._alone_problem(text)
        return None if problem is None else "it may be a command, and is none that is allowed"

    def _alone_problem(self, word: str) -> str | None:
        """A single word does harm as a command if it is one; a path or a number is none."""
        is_name = word.isascii() and word.replace("-", "").replace("_", "").isalpha()
        return self.commands.problem((word,)) if is_name else None

    def whole_problem(self, arguments: Mapping[str, object], rules: Rules) -> str | None:
        """A program and its words that stand apart, or a line that is a list, are one command."""
        for table in _tables(arguments):
            line = self._assembled(table, rules)
            if line is not None:
                problem = self.commands.problem(line)
                if problem is not None:
                    return problem
        return None

    def _assembled(self, table: Mapping[str, object], rules: Rules) -> Sequence[str] | None:
        line: list[str] = []
        words: list[str] = []
        for name, value in table.items():
            meaning = meaning_of(name, name, rules.arguments)
            if meaning is Meaning.COMMAND and isinstance(value, list):
                line += [each for each in cast("list[object]", value) if isinstance(each, str)]
            elif meaning is Meaning.COMMAND and isinstance(value, str):
                read = self.read(value)
                line += () if isinstance(read, Unreadable) else read
            elif meaning is Meaning.WORDS and isinstance(value, list):
                words += [each for each in cast("list[object]", value) if isinstance(each, str)]
            elif meaning is Meaning.WORDS and isinstance(value, str):
                words += value.split()
        if len(line) + len(words) > MOST_WORDS:
            return ("too many words",)
        return (*line, *words) if line else None


def _tables(arguments: Mapping[str, object]) -> list[Mapping[str, object]]:
    found: list[Mapping[str, object]] = []
    waiting: list[object] = [arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            table = cast("dict[str, object]", value)
            found.append(table)
            waiting += table.values()
        elif isinstance(value, list):
            waiting += cast("list[object]", value)
    return found


def _word_problem(word: str) -> str | None:
    if len(word) > MOST_CHARACTERS:
        return f"it has over {MOST_CHARACTERS} characters"
    found = _ACTED_ON.search(unicodedata.normalize("NFKC", word))
    return f"it holds {found.group()!r}, on which a shell would act" if found else None


def _text_problem(text: str) -> str | None:
    plain = unicodedata.normalize("NFKC", text)
    found = _IN_TEXT.search(plain)
    if found is not None:
        return f"it holds {found.group()!r}, on which a shell would act"
    return "it looks like a deletion" if _DELETES.search(plain) else None
