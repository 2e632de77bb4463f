"""Validators for tools that name none themselves, by what their arguments are called. (MGP §8.2)

A plain MCP server says nothing of validators. What an argument is called says what becomes of it
often enough to look at its value: a command is run, a URL is fetched, code is executed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

SANDBOX: Final = "sandbox"
NETWORK_RESTRICTED: Final = "network_restricted"
CODE_SAFETY: Final = "code_safety"

_BY_ARGUMENT: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("command", "cmd", "shell_command", "command_line"), (SANDBOX, "command")),
    **dict.fromkeys(("url", "uri", "endpoint", "webhook_url"), (NETWORK_RESTRICTED, "url")),
    **dict.fromkeys(("code", "python_code", "script", "source_code"), (CODE_SAFETY, "code")),
}
_RUNS: Final = frozenset({"run", "exec", "execute", "shell", "bash", "terminal", "command"})
_RUN_ARGUMENTS: Final = frozenset({"input", "line", "args", "text"})
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A validator for one argument of a tool, and what that argument is."""

    validator: str
    argument: str
    meaning: str


def suggested(name: str, definition: Mapping[str, object]) -> tuple[Suggestion, ...]:
    """What the names of a tool and of its arguments suggest."""
    arguments = list(_texts(definition))
    found = [
        Suggestion(*_split(_BY_ARGUMENT[plain], argument))
        for argument in arguments
        if (plain := _plain(argument)) in _BY_ARGUMENT
    ]
    runs = _RUNS & {word.casefold() for word in _WORDS.findall(name)}
    if runs and not any(each.validator in (SANDBOX, CODE_SAFETY) for each in found):
        # `bash(input)` runs what it is given, whatever that is called.
        found += (
            Suggestion(SANDBOX, argument, "command")
            for argument in arguments
            if _plain(argument) in _RUN_ARGUMENTS
        )
    return tuple(found)


def validators_of(suggestions: Iterable[Suggestion]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.validator for each in suggestions))


def _split(found: tuple[str, str], argument: str) -> tuple[str, str, str]:
    validator, meaning = found
    return validator, argument, meaning


def _plain(argument: str) -> str:
    """An argument's name in one style: `shellCommand` is `shell_command`."""
    return "_".join(word.casefold() for word in _WORDS.findall(argument))


def _texts(definition: Mapping[str, object]) -> Iterator[str]:
    """The arguments of a tool that may be texts, or lists of them."""
    properties = _table(_table(definition.get("inputSchema")).get("properties"))
    for name, said in properties.items():
        if _table(said).get("type") not in ("boolean", "integer", "number", "null"):
            yield name


def _table(value: object) -> Mapping[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
