"""Writes docs/reference/settings.md from the declarations of the settings; run it after a change.

.venv/bin/python -m tests.docs.settings
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from comity.app.server_entries import CONNECTION_FIELDS
from comity.app.settings import SERVER_FIELDS, TABLES
from comity.config.fields import ConfigField, fields_of, to_config_value
from tests.docs.pages import ROOT

type Schema = Mapping[str, Any]

PAGE: Final = ROOT / "docs" / "reference" / "settings.md"
NOTES: Final = PAGE.with_name("settings-notes.toml")
COLUMNS: Final = "| setting | type | default | range | change | meaning |\n" + "|---" * 6 + "|"
ENTRY_COLUMNS: Final = "| key | type | range | meaning |\n|---|---|---|---|"
AT_ONCE: Final = "at once"
RESTART: Final = "restart"
SERVER_RESTART: Final = "server restarts"
_SENTENCES: Final = {
    AT_ONCE: "A change takes effect at once.",
    RESTART: "A change needs a restart of the gateway.",
    SERVER_RESTART: "After a change, Comity restarts the server.",
}
# A change of these needs no restart of the server, though they are part of its entry.
LIVE_OF_SERVERS: Final = {"default_policy", "live"}


def page() -> str:
    notes = tomllib.loads(NOTES.read_text(encoding="utf-8"))
    sections = [_section(name, notes["tables"][name or "top"]) for name in _tables()]
    return "\n".join([notes["head"], *sections, notes["environment"]])


def _tables() -> Iterator[str]:
    """Yield the name of each section: the top level, lists of tables in it, and tables."""
    yield ""
    yield "servers"
    yield from (name for name, each in fields_of(TABLES[""]).items() if _entry_of(each.kind.schema))
    yield from (name for name in TABLES if name)


def _section(name: str, notes: Mapping[str, str]) -> str:
    """Return a section: what the table is for, an example, and its settings."""
    parts = [f"## {_title(name)}", notes["about"], f"```toml\n{notes['example']}```"]
    top = fields_of(TABLES[""])
    if name == "servers":
        parts += _server_tables()
    elif name in top:
        parts.append(_entry_table(name, _entry_of(top[name].kind.schema) or {}))
    else:
        parts += _settings_tables(name, fields_of(TABLES[name]).values())
    return "\n\n".join(parts) + "\n"


def _title(name: str) -> str:
    if not name:
        return "Top level"
    return f"`[[{name}]]`" if name == "servers" or name in fields_of(TABLES[""]) else f"`[{name}]`"


def _settings_tables(table: str, declared: Iterable[ConfigField]) -> Iterator[str]:
    """Yield the table of settings, and one for each list of tables among them."""
    plain = [each for each in declared if _entry_of(each.kind.schema) is None]
    nested = [each for each in declared if _entry_of(each.kind.schema) is not None]
    yield "\n".join([COLUMNS, *(_row(table, each, _change(each)) for each in plain)])
    for each in nested if table else ():
        name = f"{table}.{each.name}"
        about = f"{each.description} {_SENTENCES[_change(each)]}"
        yield f"### `[[{name}]]`\n\n{about}"
        yield _entry_table(name, _entry_of(each.kind.schema) or {})


def _server_tables() -> Iterator[str]:
    reach = [
        _entry_row("servers", key, schema, meaning)
        for key, (schema, meaning) in CONNECTION_FIELDS.items()
    ]
    identifier = _entry_row("servers", "id", {"type": "string"}, "its name in tools and paths")
    yield "\n".join([ENTRY_COLUMNS, identifier, *reach])
    plain = [each for each in SERVER_FIELDS.values() if _properties(each.kind.schema) is None]
    rows = [_row("servers", each, _change_of_server(each)) for each in plain]
    yield "\n".join([COLUMNS, *rows])
    for each in SERVER_FIELDS.values():
        properties = _properties(each.kind.schema)
        if properties is not None:
            name = f"servers.{each.name}" + (".NAME" if each.name == "tools" else "")
            about = f"{each.description} {_SENTENCES[_change_of_server(each)]}"
            yield f"### `[{name}]`\n\n{about}"
            yield _entry_table(name, {"properties": properties})


def _entry_table(table: str, schema: Schema) -> str:
    required = cast("list[str]", schema.get("required", []))
    rows = [
        _entry_row(table, key, kind, kind.get("description", ""), is_required=key in required)
        for key, kind in cast("dict[str, Schema]", schema["properties"]).items()
    ]
    return "\n".join([ENTRY_COLUMNS, *rows])


def _entry_row(
    table: str, key: str, schema: Schema, meaning: str, *, is_required: bool = False
) -> str:
    told = meaning + ("; required" if is_required else "")
    cells = (_anchored(table, key), _type(schema), _range(schema), _cell(told))
    return "| " + " | ".join(cells) + " |"


def _row(table: str, each: ConfigField, change: str) -> str:
    schema = each.kind.schema
    default = f"`{json.dumps(to_config_value(each.default))}`"
    cells = (_type(schema), default, _range(schema), change, _cell(each.description))
    return f"| {_anchored(table, each.name)} | {' | '.join(cells)} |"


def _anchored(table: str, key: str) -> str:
    name = f"{table}.{key}" if table else key
    return f'<a id="{name}"></a>`{key}`'


def _change(each: ConfigField) -> str:
    return AT_ONCE if each.is_live else RESTART


def _change_of_server(each: ConfigField) -> str:
    return AT_ONCE if each.name in LIVE_OF_SERVERS else SERVER_RESTART


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return "one of"
    if _is_duration(schema):
        return "duration"
    if "anyOf" in schema:
        return "table"
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_plural(_type(schema.get('items', {})))}"
    if isinstance(kind, list):
        return "text or number"
    names = {"string": "text", "boolean": "true or false", "object": "table"}
    return names.get(cast("str", kind), "number")


def _plural(kind: str) -> str:
    return {"one of": "choices", "text or number": "texts or numbers"}.get(kind, f"{kind}s")


def _range(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if _is_duration(schema):
        zero = any(each.get("enum") for each in schema["anyOf"])
        return "0s, or 1ms to 366d" if zero else "1ms to 366d"
    if schema.get("type") == "array":
        items = cast("Schema", schema.get("items", {}))
        limit = f"at most {schema['maxItems']:,}" if "maxItems" in schema else ""
        return _range(items) if "enum" in items else limit
    if "minimum" in schema:
        return f"{schema['minimum']:,} to {schema['maximum']:,}"
    return ""


def _is_duration(schema: Schema) -> bool:
    return any("ms|s|m|h|d" in each.get("pattern", "") for each in schema.get("anyOf", ()))


def _entry_of(schema: Schema) -> Schema | None:
    """Return the schema of one table in a list of tables, or None for any other setting."""
    items = cast("Schema", schema.get("items", {}))
    return items if "properties" in items else None


def _properties(schema: Schema) -> Schema | None:
    """Return the keys of a table of a server. For `tools`, they are those of each tool."""
    for each in (schema, *schema.get("anyOf", ())):
        inner = each if "properties" in each else each.get("additionalProperties")
        if isinstance(inner, dict) and "properties" in inner:
            return cast("Schema", inner["properties"])
    return None


def _cell(text: str) -> str:
    """Return the text for a cell, with words in bare asterisks and braces as code."""
    return re.sub(r"(?<![`\w*])(\*+|\{/?\w+\})(?![`\w])", r"`\1`", text.replace("|", "\\|"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
