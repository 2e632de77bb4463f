"""The known MCP clients: where each keeps its servers, and in which shape."""

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
class ClientApplication:
    """An MCP client: its files, and how it writes an HTTP server or a program."""

    name: str
    title: str
    files: Mapping[str, str]
    project: str = ""
    key: str = "mcpServers"
    shape: Shape = "json"
    # The entry for a server at HTTP; empty if the client can only start programs.
    called: Template = field(default_factory=lambda: {"url": URL})
    started: Template = field(default_factory=lambda: _STARTED)
    # The transport of a `url` without a type.
    bare_url: Literal["http", "sse"] = "http"

    def user_file(self, environ: Mapping[str, str], platform: str = sys.platform) -> Path | None:
        """Return the file for all projects of the user, or None on an unsupported platform."""
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
        key="servers",
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
        key="context_servers",
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
        key="mcp_servers",
        shape="toml",
    ),
    ClientApplication(
        "cline",
        "Cline",
        _in_application_folders(_CLINE),
        called={"type": "streamableHttp", "url": URL},
        bare_url="sse",
    ),
    ClientApplication("lm-studio", "LM Studio", {ANYWHERE: "~/.lmstudio/mcp.json"}),
)

BY_NAME: Final = {client.name: client for client in CLIENTS}
