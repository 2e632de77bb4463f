"""Where clients keep their files, on every kind of machine."""

from pathlib import Path

import pytest

from comity.cli.clients import BY_NAME, CLIENTS

HOME = Path.home()
MAC = HOME / "Library/Application Support"


@pytest.mark.parametrize(
    ("client", "platform", "environ", "path"),
    [
        ("claude-desktop", "darwin", {}, MAC / "Claude/claude_desktop_config.json"),
        ("claude-desktop", "linux", {}, HOME / ".config/Claude/claude_desktop_config.json"),
        (
            "claude-desktop",
            "linux",
            {"XDG_CONFIG_HOME": "/x"},
            "/x/Claude/claude_desktop_config.json",
        ),
        ("claude-desktop", "win32", {"APPDATA": "/a"}, "/a/Claude/claude_desktop_config.json"),
        ("vscode", "darwin", {}, MAC / "Code/User/mcp.json"),
        ("zed", "darwin", {}, HOME / ".config/zed/settings.json"),
        ("zed", "linux", {"XDG_CONFIG_HOME": "/x"}, "/x/zed/settings.json"),
        ("zed", "win32", {"APPDATA": "/a"}, "/a/Zed/settings.json"),
        ("cursor", "win32", {}, HOME / ".cursor/mcp.json"),
        ("codex", "linux", {"CODEX_HOME": "/c"}, "/c/config.toml"),
        ("codex", "darwin", {}, HOME / ".codex/config.toml"),
        ("claude-desktop", "freebsd", {}, None),
    ],
)
def test_a_client_is_looked_for_where_it_keeps_its_file(
    client: str, platform: str, environ: dict[str, str], path: Path | str | None
) -> None:
    found = BY_NAME[client].user_file(environ, platform)
    assert found == (Path(path) if path else None)


def test_no_two_clients_have_one_file() -> None:
    for platform in ("linux", "darwin", "win32"):
        paths = [client.user_file({}, platform) for client in CLIENTS]
        assert len(set(paths)) == len(CLIENTS)
