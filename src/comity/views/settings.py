"""The tables `[[views]]`: which tools each view holds, and what it changes about them."""

from typing import Any, Final, cast

from comity.catalog.definitions import hidden_characters
from comity.config.document import ConfigErrors, ConfigValue
from comity.config.fields import (
    FieldType,
    Members,
    all_of,
    members_of,
    one_of,
    pattern_type,
    table_of,
)
from comity.errors import MalformedMessage, Misconfigured
from comity.mcp import jsonrpc
from comity.policy.grants import ANY, VIEW_NAME, VIEW_PREFIX, parse_target, split_target
from comity.views.model import HINTS, MAX_VIEW_TOOLS, PrefixRule, ToolOverride, View
from comity.views.tools import TOOL_NAME

MAX_VIEWS: Final = 200
MAX_SELECTED: Final = 200
MAX_TEXT_LENGTH: Final = 10_000
MAX_VALUE_BYTES: Final = 64 * 1024
"""The size of all fixed and default values of one tool, as JSON."""


def _read_text(value: ConfigValue) -> str:
    text = value.text()
    if len(text) > MAX_TEXT_LENGTH:
        raise value.wrong(f"has more than {MAX_TEXT_LENGTH} characters; shorten it")
    if hidden_characters(text):
        raise value.wrong("holds characters that readers do not see; remove them")
    return text


def _read_selected(value: ConfigValue) -> str:
    try:
        target = parse_target(value.text())
    except MalformedMessage as refused:
        raise value.wrong(str(refused)) from None
    if target.startswith(VIEW_PREFIX):
        raise value.wrong("a view selects tools of servers, not other views")
    return target


def _read_tool(value: ConfigValue) -> tuple[str, str]:
    target = _read_selected(value)
    if ANY in target:
        raise value.wrong("must name one tool, as files/read_file")
    return split_target(target)


def _read_values(value: ConfigValue) -> dict[str, object]:
    """Read arguments with their values, which JSON must be able to hold."""
    table = value.table()
    for name, each in table.items():
        if not name or len(name) > 128 or hidden_characters(name):
            raise each.wrong("the name of an argument has 1 to 128 visible characters")
    said = {name: _plain_value(each) for name, each in table.items()}
    if len(jsonrpc.to_json(said)) > MAX_VALUE_BYTES:
        raise value.wrong(f"has more than {MAX_VALUE_BYTES} bytes of values")
    return said


def _plain_value(value: ConfigValue) -> object:
    said = value.value
    if isinstance(said, dict):
        return {name: _plain_value(each) for name, each in value.table().items()}
    if isinstance(said, list):
        return [_plain_value(each) for each in value.items()]
    if isinstance(said, str):
        return value.text()
    if isinstance(said, bool | int):
        return said
    if isinstance(said, float) and abs(said) < float("inf"):
        return said
    raise value.wrong("must be a text, a finite number, true, false, a list or a table")


def _read_hints(value: ConfigValue) -> dict[str, bool]:
    for stranger in value.unknown_keys(HINTS):
        raise stranger
    return {name: each.truth() for name, each in value.table().items()}


_TEXT: Final = FieldType(_read_text, {"type": "string", "maxLength": MAX_TEXT_LENGTH})
_VALUES: Final = FieldType(_read_values, {"type": "object"})
_TOOL_MEMBERS: Final[Members] = {
    "tool": (
        FieldType(_read_tool, {"type": "string", "pattern": "^[^/*]+/[^*]+$"}),
        "the tool, as server/tool",
    ),
    "name": (pattern_type(TOOL_NAME, "read_file"), "its name in the view"),
    "title": (_TEXT, "its title in the view"),
    "description": (_TEXT, "its description in the view"),
    "arguments": (_VALUES, "fixed arguments: clients neither see nor set them"),
    "defaults": (_VALUES, "the values of arguments that a call leaves out"),
    "annotations": (
        FieldType(
            _read_hints,
            {
                "type": "object",
                "properties": {name: {"type": "boolean"} for name in HINTS},
                "additionalProperties": False,
            },
        ),
        "corrected annotations, as readOnlyHint",
    ),
    "definition": (
        pattern_type("[0-9a-f]{12,64}", "3f9a1c77d0b2"),
        "the digest of the definition that you read; Comity reports when it changes",
    ),
}


def _read_override(entry: ConfigValue) -> ToolOverride:
    said = members_of(entry, _TOOL_MEMBERS, ("tool",))
    server, tool = cast("tuple[str, str]", said.pop("tool"))
    override = ToolOverride(server, tool, **said)
    both = sorted(override.arguments.keys() & override.defaults.keys())
    if both:
        raise entry.wrong(f"the argument {both[0]!r} is both fixed and a default; choose one")
    return override


_VIEW_MEMBERS: Final[Members] = {
    "name": (pattern_type(VIEW_NAME, "payments"), "its name, which its address holds"),
    "title": (_TEXT, "its title for people"),
    "description": (_TEXT, "its purpose, for people"),
    "select": (
        FieldType(
            all_of(_read_selected, MAX_SELECTED),
            {"type": "array", "maxItems": MAX_SELECTED, "items": {"type": "string"}},
        ),
        "the tools: server/tool, server/search_*, or server/* with its resources and prompts",
    ),
    "prefix": (
        one_of(*PrefixRule),
        "when a name begins with its server: `on_conflict` (default), `always` or `never`",
    ),
    "tools": (
        FieldType(
            all_of(_read_override, MAX_VIEW_TOOLS),
            {
                "type": "array",
                "maxItems": MAX_VIEW_TOOLS,
                "items": table_of(_TOOL_MEMBERS, required=["tool"]),
            },
        ),
        "single tools of the view, with what it changes about each",
    ),
}


def _read_view(entry: ConfigValue) -> View:
    said: dict[str, Any] = members_of(entry, _VIEW_MEMBERS, ("name",))
    overrides: tuple[ToolOverride, ...] = said.pop("tools", ())
    mistakes = ConfigErrors()
    for what, names in (
        ("tool", [each.target for each in overrides]),
        ("name", [each.name for each in overrides if each.name]),
    ):
        mistakes.add(
            *(
                entry.wrong(f"two entries of tools have the {what} {name!r}; remove one")
                for name in sorted({each for each in names if names.count(each) > 1})
            )
        )
    if not overrides and not said.get("select"):
        mistakes.add(entry.wrong('selects no tools; write select = ["server/tool"]'))
    if mistakes.found:
        raise Misconfigured(mistakes)
    said["prefix"] = PrefixRule(said.get("prefix", PrefixRule.ON_CONFLICT))
    return View(**said, overrides=overrides)


def _read_views(value: ConfigValue) -> tuple[View, ...]:
    views: tuple[View, ...] = all_of(_read_view, MAX_VIEWS)(value)
    names = [view.name.casefold() for view in views]
    for view in views:
        if names.count(view.name.casefold()) > 1:
            raise value.wrong(f"two views have the name {view.name!r}; rename one")
    return views


VIEWS: Final = FieldType(
    _read_views,
    {"type": "array", "maxItems": MAX_VIEWS, "items": table_of(_VIEW_MEMBERS, required=["name"])},
)
