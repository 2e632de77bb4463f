"""A configuration written into a file of the moment, and what was read from it."""

import json
from pathlib import Path

from comity.app.settings import ServerSettings, Settings
from comity.app.settings_reader import load_settings


def from_json(tmp_path: Path, document: object, environ: dict[str, str] | None = None) -> Settings:
    return from_text(tmp_path, json.dumps(document), "mcp.json", environ)


def from_text(
    tmp_path: Path, text: str, name: str = "comity.toml", environ: dict[str, str] | None = None
) -> Settings:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return load_settings(path, environ or {})


def one(tmp_path: Path, entry: object, environ: dict[str, str] | None = None) -> ServerSettings:
    (server,) = from_json(tmp_path, {"mcpServers": {"it": entry}}, environ).servers
    return server
