"""How an operator has a tool's arguments looked at, as its table `inspect` says."""

import re
from collections.abc import Mapping
from typing import Any, Final

from comity.config.kinds import Kind, number, one_of, texts
from comity.rules.code_safety import MOST_BYTES_EVER, CodePolicy, Level
from comity.rules.documents import Written
from comity.rules.paths import Scope, pattern_problem
from comity.rules.shell_commands import NEVER
from comity.rules.validators import UNRULED, Rules

_COMMANDS: Final = texts(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}", "a command, as make")
_HOSTS: Final = texts(r"\.?[A-Za-z0-9_.:-]{1,253}", "db.example.org, or .example.org for all below")
_SCHEMES: Final = texts(r"[a-z][a-z0-9+.-]{0,31}", "a scheme, as https")
_MODULES: Final = texts(r"[A-Za-z_][A-Za-z0-9_.]{0,127}", "a module, as numpy")
_PATTERNS: Final = texts(r".{1,200}", "a text that code may not hold")


def _commands(written: Written) -> tuple[object, ...]:
    for each in written.items():
        if each.text() in NEVER:
            raise each.wrong("runs other commands, and so would let every one of them through")
    return _texts(_COMMANDS, written)


def _paths(written: Written) -> tuple[object, ...]:
    for each in written.items():
        problem = pattern_problem(each.text())
        if problem is not None:
            raise each.wrong(problem)
    return tuple(each.text() for each in written.items())


def _settings(written: Written) -> Mapping[str, object]:
    return {
        name: {key: inner.value for key, inner in each.table().items()}
        for name, each in written.table().items()
    }


def _texts(kind: Kind, written: Written) -> tuple[object, ...]:
    read = kind.read(written)
    assert isinstance(read, tuple)
    return read


_STRINGS: Final[Mapping[str, object]] = {"type": "array", "items": {"type": "string"}}
MEMBERS: Final[Mapping[str, tuple[Kind, str]]] = {
    "commands": (Kind(_commands, _COMMANDS.schema), "commands that `sandbox` lets through as well"),
    "no_commands": (_COMMANDS, "commands that it does not let through"),
    "hosts": (_HOSTS, "hosts that `network_restricted` lets through, wherever they are"),
    "schemes": (_SCHEMES, "the schemes of URLs that it lets through"),
    "paths": (Kind(_paths, _STRINGS), "patterns of the only paths that the tool may be given"),
    "denied_paths": (Kind(_paths, _STRINGS), "patterns of paths that it is not given, even so"),
    "code_level": (one_of(*Level), "how strictly `code_safety` judges, at least"),
    "code_bytes": (number(1, MOST_BYTES_EVER), "how long its code may be"),
    "allowed_imports": (_MODULES, "modules that code may import beside those that are known"),
    "blocked_imports": (_MODULES, "modules that it may not import"),
    "blocked_patterns": (_PATTERNS, "texts that it may not hold"),
    "settings": (
        Kind(_settings, {"type": "object", "additionalProperties": {"type": "object"}}),
        "what validators that are plugins are told, by their names",
    ),
}


def _read(written: Written) -> Any:
    for stranger in written.unknown(MEMBERS):
        raise stranger
    said: dict[str, Any] = {
        name: MEMBERS[name][0].read(each) for name, each in written.table().items()
    }
    allowed, denied = said.get("paths", ()), said.get("denied_paths", ())
    level = said.get("code_level")
    return Rules(
        more_commands=frozenset(said.get("commands", ())),
        fewer_commands=frozenset(said.get("no_commands", ())),
        hosts=frozenset(each.casefold() for each in said.get("hosts", ())),
        schemes=frozenset(said.get("schemes", UNRULED.schemes)),
        # Where only denials stand, all else is allowed.
        paths=Scope(allowed or ("/**",), denied) if allowed or denied else None,
        code=CodePolicy(
            level=None if level is None else Level(level),
            most_bytes=said.get("code_bytes", 0),
            blocked_imports=frozenset(said.get("blocked_imports", ())),
            blocked_patterns=tuple(said.get("blocked_patterns", ())),
            more_imports=frozenset(said.get("allowed_imports", ())),
        ),
        settings=said.get("settings", {}),
    )


INSPECT: Final = Kind(
    _read,
    {
        "type": "object",
        "properties": {
            name: {**kind.schema, "description": re.sub("`", "", meaning)}
            for name, (kind, meaning) in MEMBERS.items()
        },
        "additionalProperties": False,
    },
)
