"""A configuration of Comity's own, written for people: as TOML, as JSON, and one to start with."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast

type Servers = Mapping[str, Mapping[str, Any]]

HEAD: Final = """\
# Comity stands in front of these servers: `comity serve` starts it, `comity check` looks this over.
# Any text may hold ${VARIABLE}, or ${VARIABLE:-what stands for it if it is not set}.
"""

POLICY: Final = """\
[policy]
# Have calls that may destroy something wait for your approval (`comity approve`). Tools that say
# that they only read, or destroy nothing, still run at once. Comity believes this of the servers in
# this file, unless one has `trust = "standard"` in its [servers.policy].
# require_approval = "destructive"

# Whether a person with the grant of everything (verb * on *) may approve its own requests. It
# matters once clients show keys ([identity] mode = "required"): with false, a single operator could
# not approve the calls that it makes itself. Set it to false when another person can approve them.
approve_own = true
"""

EXAMPLES: Final = """
# A program that is started, and spoken with over its input and output:
#
# [[servers]]
# id = "files"
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"]
#
# A server that is called over HTTP:
#
# [[servers]]
# id = "search"
# url = "https://search.example.org/mcp"
# headers = { Authorization = "Bearer ${SEARCH_TOKEN}" }
"""

_ORDER: Final = ("command", "args", "cwd", "url", "transport", "disabled")
_TABLES: Final = ("env", "headers")


def as_toml(servers: Servers) -> str:
    """comity.toml with these servers, each under its id."""
    return "\n".join([HEAD, POLICY, *(_table(name, entry) for name, entry in servers.items())])


def as_json(servers: Servers) -> str:
    """The form that most clients have; what Comity alone knows has the same names there."""
    document = {"mcpServers": {name: dict(entry) for name, entry in servers.items()}}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def starter(example: Mapping[str, Any]) -> str:
    """comity.toml for somebody who has no servers yet: one that works at once, and how to go on."""
    told = "# A small server that comes with Comity, to try things with.\n"
    return "\n".join([HEAD, POLICY, told + _table("example", example)]) + EXAMPLES


def toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(each) for each in cast("list[object]", value)) + "]"
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        inner = ", ".join(f"{toml_key(name)} = {toml_value(each)}" for name, each in pairs)
        return f"{{ {inner} }}" if inner else "{}"
    return toml_text(str(value))


def toml_text(text: str) -> str:
    """A text in quotes; TOML's escapes are JSON's, and it wants one more character escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_text(name)


def _table(name: str, entry: Mapping[str, Any]) -> str:
    lines = ["[[servers]]", f"id = {toml_text(name)}"]
    lines += [f"{key} = {toml_value(entry[key])}" for key in _ORDER if key in entry]
    for key in _TABLES:
        if entry.get(key):
            lines.append(f"[servers.{key}]")
            lines += [
                f"{toml_key(each)} = {toml_value(value)}" for each, value in entry[key].items()
            ]
    return "\n".join([*lines, ""])
