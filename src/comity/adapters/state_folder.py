"""Where Comity keeps what is about this user and machine, and not about one configuration.

Records of running gateways and the key that signs the audit log stand here. The folder is readable
by its user alone (0700).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from comity.wire.errors import Misconfigured

STATE_VARIABLE: Final = "COMITY_STATE_DIR"


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where Comity keeps what is about this user's processes, and not about a configuration."""
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
    """The folder, or one in it, made if need be; raises Misconfigured where that fails."""
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
