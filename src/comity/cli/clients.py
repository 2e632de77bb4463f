"""The MCP clients that people use: where each keeps its servers, and in which shape. Data only.

Taken from the clients' own documentation in November 2026. A path begins at the home (`~`), at the
folder for settings (`{config}`, which XDG_CONFIG_HOME can move) or at Windows' `{appdata}`.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

type Shape = Literal["json", "toml"]
type Template = Mapping[str, str]

URL: Final = "{url}"
COMMAND: Final = "{command}"
ARGS: Final = "{args}"
ANYWHERE: Final = "anywhere"

_STARTED: Final[Template] = {"command": COMMAND, "args": ARGS}
_CODE: Final = "Code/User"
_CLINE: Final = f"{_CODE}/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"


def _in_application_folders(path: str) -> dict[str, str]:
    return {
        "linux": f"{{config}}/{path}",
        "darwin": f"~/Library/Application Support/{path}",
        "win32": f"{{appdata}}/{path}",
    }


@dataclass(frozen=True, slots=True)
class Client:
    """One client: its files, and how it writes down a server that it calls, or starts."""

    name: str
    title: str
    files: Mapping[str, str]
    project: str = ""
    key: str = "mcpServers"
    shape: Shape = "json"
    # What it needs to call a server over HTTP; nothing where it can only start programs.
    called: Template = field(default_factory=lambda: {"url": URL})
    started: Template = field(default_factory=lambda: _STARTED)
    # How it reads a `url` without a type.
    bare_url: Literal["http", "sse"] = "http"

    def user_file(self, environ: Mapping[str, str], platform: str = sys.platform) -> Path | None:
        """The file for all projects of the user; None where the client does not run."""
        written = self.files.get(ANYWHERE) or self.files.get(platform)
        if written is None:
            return None
        home = Path.home()
        config = environ.get("XDG_CONFIG_HOME") or str(home / ".config")
        appdata = environ.get("APPDATA") or str(home / "AppData/Roaming")
        codex = environ.get("CODEX_HOME") or str(home / ".codex")
        placed = written.format(config=config, appdata=appdata, codex=codex)
        return Path(placed.replace("~", str(home), 1) if placed.startswith("~") else placed)


CLIENTS: Final = (
    Client(
        "claude-desktop",
        "Claude Desktop",
        _in_application_folders("Claude/claude_desktop_config.json"),
        called={},
    ),
    Client(
        "claude-code",
        "Claude Code",
        {ANYWHERE: "~/.claude.json"},
        project=".mcp.json",
        called={"type": "http", "url": URL},
        started={"type": "stdio", **_STARTED},
    ),
    Client("cursor", "Cursor", {ANYWHERE: "~/.cursor/mcp.json"}, project=".cursor/mcp.json"),
    Client(
        "vscode",
        "VS Code",
        _in_application_folders(f"{_CODE}/mcp.json"),
        project=".vscode/mcp.json",
        key="servers",
        called={"type": "http", "url": URL},
        started={"type": "stdio", **_STARTED},
    ),
    Client(
        "windsurf",
        "Windsurf",
        {ANYWHERE: "~/.codeium/windsurf/mcp_config.json"},
        called={"serverUrl": URL},
    ),
    Client(
        "zed",
        "Zed",
        {
            "linux": "{config}/zed/settings.json",
            "darwin": "~/.config/zed/settings.json",
            "win32": "{appdata}/Zed/settings.json",
        },
        project=".zed/settings.json",
        key="context_servers",
    ),
    Client(
        "gemini",
        "Gemini CLI",
        {ANYWHERE: "~/.gemini/settings.json"},
        project=".gemini/settings.json",
        called={"httpUrl": URL},
        bare_url="sse",
    ),
    Client(
        "codex",
        "Codex",
        {ANYWHERE: "{codex}/config.toml"},
        project=".codex/config.toml",
        key="mcp_servers",
        shape="toml",
    ),
    Client(
        "cline",
        "Cline",
        _in_application_folders(_CLINE),
        called={"type": "streamableHttp", "url": URL},
        bare_url="sse",
    ),
    Client("lm-studio", "LM Studio", {ANYWHERE: "~/.lmstudio/mcp.json"}),
)

BY_NAME: Final = {client.name: client for client in CLIENTS}
