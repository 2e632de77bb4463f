"""The tools of a view: their names, their definitions, and how they differ from the originals."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.entries import CatalogEntry
from comity.mcp.jsonrpc import Raw
from comity.mcp.modern_requests import marks_in
from comity.views.arguments import ArgumentRewrite
from comity.views.model import MAX_VIEW_TOOLS, PrefixRule, ToolOverride, View

TOOL_NAME: Final = r"[A-Za-z0-9_.-]{1,64}"
"""The names that all clients accept."""

_NAME_PATTERN: Final = re.compile(TOOL_NAME)
_UI_SCHEME: Final = "ui://"

type Schema = dict[str, Any]
type DigestOf = Callable[[CatalogEntry], str]
type BuildTool = Callable[[CatalogEntry, str, ToolOverride | None], "ViewTool"]


@dataclass(frozen=True, slots=True)
class ViewTool:
    """One tool of a view.

    `entry` is the tool of its server. `listed` has the name and the definition of the view. A tool
    with a reason in `withheld` is not served.
    """

    entry: CatalogEntry
    listed: CatalogEntry
    override: ToolOverride | None = None
    rewrite: ArgumentRewrite | None = None
    drift: tuple[str, ...] = ()
    withheld: str = ""
    # Whether headers of a modern request repeat some of its arguments.
    has_header_arguments: bool = False


@dataclass(frozen=True, slots=True)
class CompiledView:
    """The tools of a view at one moment, in the order of their names, and its problems."""

    tools: tuple[ViewTool, ...] = ()
    problems: tuple[str, ...] = ()
    # Resources that the tools show as their user interface, as pairs of server and URI.
    interfaces: frozenset[tuple[str, str]] = frozenset()
    by_name: Mapping[str, ViewTool] = field(default_factory=dict[str, ViewTool])


def compile_view(view: View, entries: Sequence[CatalogEntry], build: BuildTool) -> CompiledView:
    """Return the tools of a view. `entries` are the selected ones in the order of the settings."""
    overrides = {(each.server, each.tool): each for each in view.overrides}
    problems = list(_missing_tools(view, entries))
    if len(entries) > MAX_VIEW_TOOLS:
        problems.append(
            f"{len(entries)} tools are selected; only the first {MAX_VIEW_TOOLS} are served"
        )
    served = entries[:MAX_VIEW_TOOLS]
    renames = {key: each.name for key, each in overrides.items() if each.name}
    names, conflicts = assign_names(view.prefix, served, renames)
    problems += conflicts
    tools = [
        build(entry, name, overrides.get((entry.server, entry.name)))
        for entry, name in zip(served, names, strict=True)
        if name
    ]
    for tool in tools:
        problems += [
            f"{tool.entry.server}/{tool.entry.name}: {said}"
            for said in (tool.withheld, *tool.drift)
            if said
        ]
    tools.sort(key=lambda each: each.listed.key)
    offered = [each for each in tools if not each.withheld]
    return CompiledView(
        tuple(tools),
        tuple(problems),
        frozenset((each.entry.server, uri) for each in offered for uri in _interfaces_of(each)),
        {each.listed.key: each for each in offered},
    )


def _missing_tools(view: View, entries: Iterable[CatalogEntry]) -> Iterable[str]:
    found = {(each.server, each.name) for each in entries}
    for each in view.overrides:
        if (each.server, each.tool) not in found:
            yield f"{each.target}: its server lists no such tool now"


def assign_names(
    prefix: PrefixRule, entries: Sequence[CatalogEntry], renames: Mapping[tuple[str, str], str]
) -> tuple[list[str], list[str]]:
    """Return the name of each entry in the view, and the problems. An empty name leaves it out.

    A name never depends on which tool its server listed first: with a conflict, the order of the
    settings decides.
    """
    wanted = [
        renames.get((each.server, each.name)) or _plain_name(prefix, each) for each in entries
    ]
    if prefix is PrefixRule.ON_CONFLICT:
        # A name that the operator gave stays. Every other holder of the name gets its prefix.
        holders = Counter(wanted)
        wanted = [
            each.key if holders[name] > 1 and (each.server, each.name) not in renames else name
            for name, each in zip(wanted, entries, strict=True)
        ]
    problems: list[str] = []
    holder_by_name: dict[str, CatalogEntry] = {}
    names: list[str] = []
    for name, entry in zip(wanted, entries, strict=True):
        holder = holder_by_name.setdefault(name, entry)
        names.append(name if holder is entry else "")
        if holder is not entry:
            problems.append(
                f"{entry.server}/{entry.name} is left out: {holder.server}/{holder.name} has the "
                f"name {name!r} already; rename one of them"
            )
    return names, problems


def _plain_name(prefix: PrefixRule, entry: CatalogEntry) -> str:
    is_usable = prefix is not PrefixRule.ALWAYS and _NAME_PATTERN.fullmatch(entry.name)
    # The public name is valid for every client, whatever the server calls its tool.
    return entry.name if is_usable else entry.key


def build_tool(
    entry: CatalogEntry, name: str, override: ToolOverride | None, digest_of: DigestOf
) -> ViewTool:
    """Return a tool as the view lists it. An override that no longer fits withholds the tool."""
    has_marks = bool(marks_in(entry.definition))
    try:
        members: dict[str, object] = {**jsonrpc.decode_members(entry.definition), "name": name}
        if override is None:
            return ViewTool(entry, _listed(entry, name, members), has_header_arguments=has_marks)
        rewrite, drift, withheld = _override_arguments(members, override)
        _override_texts(members, override)
    except MalformedMessage:
        return ViewTool(entry, entry, override, withheld="its definition cannot be read")
    if override.definition and not digest_of(entry).startswith(override.definition):
        drift.append("its definition has changed since the view was written")
    return ViewTool(
        entry,
        _listed(entry, name, members),
        override,
        rewrite,
        tuple(drift),
        withheld,
        has_marks,
    )


def _listed(entry: CatalogEntry, name: str, members: Mapping[str, object]) -> CatalogEntry:
    return CatalogEntry(name, entry.server, entry.name, jsonrpc.to_json(members))


def _override_texts(members: dict[str, object], override: ToolOverride) -> None:
    if override.title:
        members["title"] = override.title
    if override.description:
        members["description"] = override.description
    if override.annotations:
        said = members.get("annotations")
        known = jsonrpc.decode_members(said) if isinstance(said, Raw) else {}
        members["annotations"] = {**known, **override.annotations}


def _override_arguments(
    members: dict[str, object], override: ToolOverride
) -> tuple[ArgumentRewrite | None, list[str], str]:
    """Change the input schema of a definition. Return the rewrite, the drift and why to withhold.

    Raises MalformedMessage if the schema cannot be read.
    """
    if not override.arguments and not override.defaults:
        return None, [], ""
    said = members.get("inputSchema")
    schema = _as_object(jsonrpc.decode_value(said) if isinstance(said, Raw) else None)
    properties = _as_object(schema.get("properties"))
    gone = [name for name in override.arguments if name not in properties]
    withheld = f"its schema has no argument {gone[0]!r}, which the view fixes" if gone else ""
    drift = [
        f"its schema has no argument {name!r}, for which the view has a default"
        for name in override.defaults
        if name not in properties
    ]
    defaults = {name: value for name, value in override.defaults.items() if name in properties}
    members["inputSchema"] = _changed_schema(schema, override.arguments, defaults)
    return ArgumentRewrite(override.arguments, defaults, properties), drift, withheld


def _changed_schema(
    schema: Schema, fixed: Mapping[str, object], defaults: Mapping[str, object]
) -> Schema:
    properties = {
        name: each
        for name, each in _as_object(schema.get("properties")).items()
        if name not in fixed
    }
    for name, value in defaults.items():
        properties[name] = {**_as_object(properties[name]), "default": value}
    changed = {**schema, "properties": properties}
    required = schema.get("required")
    if isinstance(required, list):
        optional = {*fixed, *defaults}
        changed["required"] = [
            name
            for name in cast("list[object]", required)
            if isinstance(name, str) and name not in optional
        ]
        if not changed["required"]:
            del changed["required"]
    return changed


def _interfaces_of(tool: ViewTool) -> Iterable[str]:
    """Yield the resources that a tool names as its user interface. (MCP Apps)"""
    meta = jsonrpc.decode_members(tool.entry.definition).get("_meta")
    if meta is None or _UI_SCHEME.encode() not in bytes(meta):
        return
    try:
        said = _as_object(jsonrpc.decode_value(meta))
    except MalformedMessage:
        return
    for uri in (_as_object(said.get("ui")).get("resourceUri"), said.get("ui/resourceUri")):
        if isinstance(uri, str) and uri.startswith(_UI_SCHEME):
            yield uri


def _as_object(value: object) -> Schema:
    return cast("Schema", value) if isinstance(value, dict) else {}
