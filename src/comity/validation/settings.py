"""The table `inspect` of a tool: the operator's rules for its arguments."""

from collections.abc import Mapping
from typing import Any, Final

from comity.config.document import ConfigValue
from comity.config.fields import (
    FieldType,
    Members,
    members_of,
    number_type,
    one_of,
    table_of,
    text_list_type,
)
from comity.validation.paths import PathScope, pattern_problem
from comity.validation.python_code import MAX_BYTES_EVER, CodePolicy, CodeSafetyLevel
from comity.validation.rules import UNRULED, ValidationRules
from comity.validation.shell import NEVER

_COMMANDS: Final = text_list_type(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}", "a command, as make")
_HOSTS: Final = text_list_type(
    r"\.?[A-Za-z0-9_.:-]{1,253}", "db.example.org, or .example.org for all below"
)
_SCHEMES: Final = text_list_type(r"[a-z][a-z0-9+.-]{0,31}", "a scheme, as https")
_MODULES: Final = text_list_type(r"[A-Za-z_][A-Za-z0-9_.]{0,127}", "a module, as numpy")
_PATTERNS: Final = text_list_type(r".{1,200}", "a text that code may not hold")


def _commands(value: ConfigValue) -> tuple[str, ...]:
    for each in value.items():
        if each.text() in NEVER:
            raise each.wrong("runs other commands, and so would let every one of them through")
    return _COMMANDS.read(value)


def _paths(value: ConfigValue) -> tuple[str, ...]:
    for each in value.items():
        problem = pattern_problem(each.text())
        if problem is not None:
            raise each.wrong(problem)
    return tuple(each.text() for each in value.items())


def _settings(value: ConfigValue) -> Mapping[str, object]:
    return {
        name: {key: inner.value for key, inner in each.table().items()}
        for name, each in value.table().items()
    }


_STRINGS: Final[Mapping[str, object]] = {"type": "array", "items": {"type": "string"}}
MEMBERS: Final[Members] = {
    "commands": (
        FieldType(_commands, _COMMANDS.schema),
        "commands that `sandbox` lets through as well",
    ),
    "denied_commands": (_COMMANDS, "commands that it does not let through"),
    "hosts": (_HOSTS, "hosts that `network_restricted` lets through, wherever they are"),
    "schemes": (_SCHEMES, "the schemes of URLs that it lets through"),
    "paths": (FieldType(_paths, _STRINGS), "patterns of the only paths that the tool may be given"),
    "denied_paths": (
        FieldType(_paths, _STRINGS),
        "patterns of paths that it is not given, even so",
    ),
    "code_level": (one_of(*CodeSafetyLevel), "how strictly `code_safety` judges, at least"),
    "max_code_bytes": (number_type(1, MAX_BYTES_EVER), "how long its code may be"),
    "allowed_imports": (_MODULES, "modules that code may import in addition to the known ones"),
    "blocked_imports": (_MODULES, "modules that it may not import"),
    "blocked_patterns": (_PATTERNS, "texts that it may not hold"),
    "settings": (
        FieldType(_settings, {"type": "object", "additionalProperties": {"type": "object"}}),
        "settings of validator plugins, by name",
    ),
}


def _read(value: ConfigValue) -> ValidationRules:
    said: dict[str, Any] = members_of(value, MEMBERS)
    allowed, denied = said.get("paths", ()), said.get("denied_paths", ())
    level = said.get("code_level")
    return ValidationRules(
        more_commands=frozenset(said.get("commands", ())),
        fewer_commands=frozenset(said.get("denied_commands", ())),
        hosts=frozenset(each.casefold() for each in said.get("hosts", ())),
        schemes=frozenset(said.get("schemes", UNRULED.schemes)),
        # With denials only, all other paths are allowed.
        paths=PathScope(allowed or ("/**",), denied) if allowed or denied else None,
        code=CodePolicy(
            level=None if level is None else CodeSafetyLevel(level),
            most_bytes=said.get("max_code_bytes", 0),
            blocked_imports=frozenset(said.get("blocked_imports", ())),
            blocked_patterns=tuple(said.get("blocked_patterns", ())),
            more_imports=frozenset(said.get("allowed_imports", ())),
        ),
        settings=said.get("settings", {}),
    )


INSPECT: Final = FieldType(_read, table_of(MEMBERS))
