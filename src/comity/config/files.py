"""The names of configuration files, and the state folder of a user."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from comity.errors import Misconfigured

OWN: Final = "comity.toml"
CLIENTS: Final = ("mcp.json", ".mcp.json")
MGP_LOCAL: Final = "mgp.toml"
MGP_USER: Final = ".config/mgp/servers.toml"
"""The only file that Comity looks for in the home folder, not in the current folder."""

MGP_VARIABLE: Final = "MGP_CONFIG_PATH"


def config_file_choices(override: str | None) -> tuple[tuple[str, ...], ...]:
    """Return the candidates. Comity reads all files of the first candidate that has one."""
    own = tuple((name,) for name in (OWN, *CLIENTS))
    return (*own, (override,)) if override else (*own, (MGP_LOCAL, MGP_USER))


STATE_VARIABLE: Final = "COMITY_STATE_DIR"


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for the state of this user's processes, independent of a configuration."""
    if named := environ.get(STATE_VARIABLE):
        return Path(named).absolute()
    if named := environ.get("XDG_STATE_HOME"):
        return Path(named).absolute() / "comity"
    try:
        return Path.home() / ".local" / "state" / "comity"
    except RuntimeError:
        raise Misconfigured(
            f"this user has no home folder; name a folder for state in {STATE_VARIABLE}"
        ) from None


def prepare_state_folder(*names: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder, or one in it, and create it. Raises Misconfigured if that fails."""
    folder = state_folder(environ)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _make_private(folder)
        for name in names:
            folder /= name
            _make_private(folder)
    except OSError as problem:
        raise Misconfigured(
            f"the folder {folder} cannot be made: {problem.strerror}; "
            f"name another one in {STATE_VARIABLE}"
        ) from None
    return folder


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise Misconfigured(
            f"{folder} belongs to another user; name another folder in {STATE_VARIABLE}"
        )
    folder.chmod(0o700)
