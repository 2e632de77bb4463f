"""The names of configuration files, and the state folder of a user."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from comity.errors import Misconfigured

OWN: Final = "comity.toml"
CLIENTS: Final = ("mcp.json", ".mcp.json")
MGP_LOCAL: Final = "mgp.toml"
MGP_USER: Final = ".config/mgp/servers.toml"
MGP_VARIABLE: Final = "MGP_CONFIG_PATH"
SYSTEM_FILE: Final = Path("/etc/comity") / OWN


def config_file_choices(
    cwd: Path, home: Path, environ: Mapping[str, str]
) -> tuple[tuple[Path, ...], ...]:
    """Return the candidates in order. Comity reads the first one whose first file exists.

    It reads the other files of that candidate together with the first one. The file that
    MGP_CONFIG_PATH names counts as existing, so that an error can name it.
    """
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "comity" / OWN
    here = tuple((cwd / name,) for name in (OWN, *CLIENTS))
    own = ((user,), (SYSTEM_FILE,))
    if override := environ.get(MGP_VARIABLE):
        return (*here, (cwd / override,), *own)
    shared = home / MGP_USER
    return (*here, (cwd / MGP_LOCAL, shared), *own, (shared,))


def existing_choices(
    choices: Iterable[tuple[Path, ...]], named: Path | None
) -> list[tuple[Path, ...]]:
    """Return the candidates that count, without the files that do not exist.

    `named` is a file that the user named. It counts even if it is missing.
    """
    return [
        (choice[0], *filter(_exists, choice[1:]))
        for choice in choices
        if choice[0] == named or _exists(choice[0])
    ]


def _exists(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def config_id(config: Path) -> str:
    """Return a file name for the state of one configuration."""
    digest = hashlib.sha256(str(config.absolute()).encode()).hexdigest()[:16]
    return f"{config.stem}-{digest}"


STATE_VARIABLE: Final = "COMITY_STATE_DIR"
PACKAGE_FOLDER: Final = "packages"
"""The folder of the package store in the state folder."""


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


def prepare_state_file(file: Path) -> None:
    """Create the folder of a file if it belongs into the state folder."""
    try:
        inner = file.absolute().parent.relative_to(state_folder())
    except (ValueError, Misconfigured):
        return
    prepare_state_folder(*inner.parts)


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise Misconfigured(
            f"{folder} belongs to another user; name another folder in {STATE_VARIABLE}"
        )
    folder.chmod(0o700)
