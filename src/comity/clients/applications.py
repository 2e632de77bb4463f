"""The known MCP clients: where each keeps its servers, and in which shape."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from comity.clients.formats import ConfigFormat, Section, TomlFormat
from comity.clients.json_format import JsonFormat
from comity.clients.yaml_format import YamlFormat
from comity.toolkit.text import object_members

type Shape = Literal["json", "toml", "yaml", "yaml-list"]
type Template = Mapping[str, Any]

FORMATS: Final[Mapping[Shape, ConfigFormat]] = {
    "json": JsonFormat(),
    "toml": TomlFormat(),
    "yaml": YamlFormat(),
    "yaml-list": YamlFormat(is_list=True),
}

NAME: Final = "comity"
"""The name of Comity's entry in every client."""

URL: Final = "{url}"
COMMAND: Final = "{command}"
ARGS: Final = "{args}"
WORDS: Final = "{words}"
"""The command and its arguments in one list."""

ANYWHERE: Final = "anywhere"
KEY_VARIABLE: Final = "COMITY_KEY"

_STARTED: Final[Template] = {"command": COMMAND, "args": ARGS}
_CODE: Final = "Code/User"
_STORAGE: Final = f"{_CODE}/globalStorage"
_CLINE: Final = f"{_STORAGE}/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"
_ROO: Final = f"{_STORAGE}/rooveterinaryinc.roo-cline/settings/mcp_settings.json"


_GOOSE: Final[Template] = {"name": NAME, "description": "Comity gateway", "timeout": 300}


def _in_application_folders(path: str) -> dict[str, str]:
    return {
        "linux": f"{{config}}/{path}",
        "darwin": f"~/Library/Application Support/{path}",
        "win32": f"{{appdata}}/{path}",
    }


@dataclass(frozen=True, slots=True)
class ClientApplication:
    """An MCP client: its files, and how it writes an HTTP server or a program."""

    name: str
    title: str
    files: Mapping[str, str]
    project: str = ""
    section: Section = ("mcpServers",)
    # Where the servers are instead, if the file has that section.
    other_section: Section = ()
    # The ending of a file that the client reads as well as the usual one.
    other_suffix: str = ""
    # The beginning of a file that Comity creates.
    new_file: str = ""
    shape: Shape = "json"
    # The entry for a server at HTTP; empty if the client can only start programs.
    called: Template = field(default_factory=lambda: {"url": URL})
    started: Template = field(default_factory=lambda: _STARTED)
    headers: Section = ("headers",)
    env: str = "env"
    # The transport of a `url` without a type.
    bare_url: Literal["http", "sse"] = "http"

    @property
    def format(self) -> ConfigFormat:
        return FORMATS[self.shape]

    def http_entry(self, url: str, key: str = "") -> dict[str, Any]:
        """Return the entry for a gateway at this address. The key goes into its headers."""
        entry = _filled(self.called, {URL: url})
        return _with_value(entry, self._header, f"Bearer {key}") if key else entry

    def stdio_entry(self, words: Sequence[str], key: str = "") -> dict[str, Any]:
        """Return the entry for a program. The key goes into its environment."""
        values = {COMMAND: words[0], ARGS: [*words[1:]], WORDS: [*words]}
        entry = _filled(self.started, values)
        return _with_value(entry, (self.env, KEY_VARIABLE), key) if key else entry

    def key_of(self, entry: Mapping[str, Any]) -> str:
        """Return the key in an entry; empty if it has none."""
        header = _value_at(entry, self._header).removeprefix("Bearer ")
        return header or _value_at(entry, (self.env, KEY_VARIABLE))

    def hide_key(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entry with a placeholder for the key, to be shown."""
        shown = dict(entry)
        if _value_at(entry, self._header):
            shown = _with_value(shown, self._header, "Bearer YOUR_KEY")
        if _value_at(entry, (self.env, KEY_VARIABLE)):
            shown = _with_value(shown, (self.env, KEY_VARIABLE), "YOUR_KEY")
        return shown

    @property
    def _header(self) -> Section:
        return (*self.headers, "Authorization")

    def user_file(self, environ: Mapping[str, str], platform: str = sys.platform) -> Path | None:
        """Return the file for all projects of the user, or None on an unsupported platform."""
        written = self.files.get(ANYWHERE) or self.files.get(platform)
        if written is None:
            return None
        home = Path.home()
        config = environ.get("XDG_CONFIG_HOME") or str(home / ".config")
        appdata = environ.get("APPDATA") or str(home / "AppData/Roaming")
        codex = environ.get("CODEX_HOME") or str(home / ".codex")
        copilot = environ.get("COPILOT_HOME") or str(home / ".copilot")
        placed = written.format(config=config, appdata=appdata, codex=codex, copilot=copilot)
        path = Path(placed.replace("~", str(home), 1) if placed.startswith("~") else placed)
        other = path.with_suffix(self.other_suffix) if self.other_suffix else path
        return other if other.is_file() and not path.is_file() else path


def _filled(template: Template, values: Mapping[str, object]) -> dict[str, Any]:
    return {
        key: values.get(value, value) if isinstance(value, str) else value
        for key, value in template.items()
    }


def _with_value(entry: Mapping[str, Any], path: Section, value: str) -> dict[str, Any]:
    first, *rest = path
    inner = entry.get(first)
    if rest:
        return {**entry, first: _with_value(object_members(inner), tuple(rest), value)}
    return {**entry, first: value}


def _value_at(entry: Mapping[str, Any], path: Section) -> str:
    found: object = entry
    for key in path:
        found = object_members(found).get(key)
    return found if isinstance(found, str) else ""


# Each client's file and form were read in November 2026, in the pages that the guide "Connect
# clients" names. JetBrains AI Assistant is left out: it keeps its servers inside the IDE.
CLIENTS: Final = (
    ClientApplication(
        "claude-desktop",
        "Claude Desktop",
        _in_application_folders("Claude/claude_desktop_config.json"),
        called={},
    ),
    ClientApplication(
        "claude-code",
        "Claude Code",
        {ANYWHERE: "~/.claude.json"},
        project=".mcp.json",
        called={"type": "http", "url": URL},
        started={"type": "stdio", **_STARTED},
    ),
    ClientApplication(
        "cursor", "Cursor", {ANYWHERE: "~/.cursor/mcp.json"}, project=".cursor/mcp.json"
    ),
    ClientApplication(
        "vscode",
        "VS Code",
        _in_application_folders(f"{_CODE}/mcp.json"),
        project=".vscode/mcp.json",
        section=("servers",),
        called={"type": "http", "url": URL},
        started={"type": "stdio", **_STARTED},
    ),
    ClientApplication(
        "windsurf",
        "Windsurf",
        {ANYWHERE: "~/.codeium/windsurf/mcp_config.json"},
        called={"serverUrl": URL},
    ),
    ClientApplication(
        "zed",
        "Zed",
        {
            "linux": "{config}/zed/settings.json",
            "darwin": "~/.config/zed/settings.json",
            "win32": "{appdata}/Zed/settings.json",
        },
        project=".zed/settings.json",
        section=("context_servers",),
    ),
    ClientApplication(
        "gemini",
        "Gemini CLI",
        {ANYWHERE: "~/.gemini/settings.json"},
        project=".gemini/settings.json",
        called={"httpUrl": URL},
        bare_url="sse",
    ),
    ClientApplication(
        "codex",
        "Codex",
        {ANYWHERE: "{codex}/config.toml"},
        project=".codex/config.toml",
        section=("mcp_servers",),
        shape="toml",
        headers=("http_headers",),
    ),
    ClientApplication(
        "cline",
        "Cline",
        _in_application_folders(_CLINE),
        called={"type": "streamableHttp", "url": URL},
        bare_url="sse",
    ),
    ClientApplication("lm-studio", "LM Studio", {ANYWHERE: "~/.lmstudio/mcp.json"}),
    ClientApplication(
        "copilot",
        "Copilot CLI",
        {ANYWHERE: "{copilot}/mcp-config.json"},
        called={"type": "http", "url": URL, "tools": ["*"]},
        started={"type": "local", **_STARTED, "tools": ["*"]},
    ),
    ClientApplication(
        "junie",
        "JetBrains Junie",
        {ANYWHERE: "~/.junie/mcp/mcp.json"},
        project=".junie/mcp/mcp.json",
        # The command line version also takes a `url`. The plugin in the IDE may not.
        called={},
    ),
    ClientApplication(
        "goose",
        "Goose",
        {
            "linux": "{config}/goose/config.yaml",
            "darwin": "{config}/goose/config.yaml",
            "win32": "{appdata}/Block/goose/config/config.yaml",
        },
        section=("extensions",),
        shape="yaml",
        called={"enabled": True, "type": "streamable_http", **_GOOSE, "uri": URL},
        started={"enabled": True, "type": "stdio", **_GOOSE, "cmd": COMMAND, "args": ARGS},
        env="envs",
    ),
    ClientApplication(
        "opencode",
        "opencode",
        {ANYWHERE: "{config}/opencode/opencode.json"},
        project="opencode.json",
        # Version 2 reads both sections.
        section=("mcp",),
        other_section=("mcp", "servers"),
        other_suffix=".jsonc",
        called={"type": "remote", "url": URL},
        started={"type": "local", "command": WORDS},
        env="environment",
    ),
    ClientApplication(
        "roo",
        "Roo Code",
        _in_application_folders(_ROO),
        project=".roo/mcp.json",
        called={"type": "streamable-http", "url": URL},
        bare_url="sse",
    ),
    ClientApplication(
        "continue",
        "Continue",
        {ANYWHERE: "~/.continue/config.yaml"},
        shape="yaml-list",
        new_file="name: Local Config\nversion: 1.0.0\nschema: v1\n",
        called={"type": "streamable-http", "url": URL},
        headers=("requestOptions", "headers"),
    ),
    ClientApplication(
        "kiro",
        "Kiro",
        {ANYWHERE: "~/.kiro/settings/mcp.json"},
        project=".kiro/settings/mcp.json",
    ),
    ClientApplication(
        "amp",
        "Amp",
        {ANYWHERE: "~/.config/amp/settings.json"},
        project=".amp/settings.json",
        section=("amp.mcpServers",),
        other_suffix=".jsonc",
    ),
)

BY_NAME: Final = {client.name: client for client in CLIENTS}
