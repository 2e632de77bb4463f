"""The project files that a person approved, and those that Comity wrote, each by its SHA-256.

A configuration starts programs. A file that comes with a folder, such as a cloned repository, has
no effect until a person approved exactly this content.

A file that Comity wrote is whole. That says nothing about what it starts, so it approves nothing.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from comity.config.document import ConfigValue
from comity.config.files import config_id, prepare_state_folder, state_folder
from comity.config.secret_files import read_secret, write_secret
from comity.errors import Misconfigured

_FOLDER: Final = "trust"
_WRITTEN: Final = "written"
TRUST_COMMAND: Final = "comity config trust"


def content_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def trust_record(path: Path) -> Path:
    """Return the file that records which content of a file a person approved."""
    return state_folder() / _FOLDER / config_id(path)


def trust_file(path: Path, digest: str, environ: Mapping[str, str] = os.environ) -> None:
    """Record that a person approved this content of a file. Raises Misconfigured."""
    _record(_FOLDER, path, digest, environ)


def is_trusted(path: Path, digest: str) -> bool:
    """Return whether a person approved this content of a file."""
    return _is_recorded(_FOLDER, path, digest)


def record_written(path: Path, digest: str) -> None:
    """Record that a command is about to write this content, and all of it. Raises Misconfigured."""
    _record(_WRITTEN, path, digest, os.environ)


def is_whole(path: Path, digest: str) -> bool:
    """Return whether this content cannot be the first part of a longer one."""
    return is_trusted(path, digest) or _is_recorded(_WRITTEN, path, digest)


def _record(kind: str, path: Path, digest: str, environ: Mapping[str, str]) -> None:
    folder = prepare_state_folder(kind, environ=environ)
    try:
        write_secret(folder / config_id(path), f"{digest}\n".encode())
    except OSError as problem:
        raise Misconfigured(f"{folder} cannot be written: {problem.strerror}") from None


def _is_recorded(kind: str, path: Path, digest: str) -> bool:
    record = state_folder() / kind / config_id(path)
    try:
        return read_secret(record, kind, must_be_own=True) == digest.encode()
    except Misconfigured:
        return False


def require_trust(path: Path, digest: str) -> None:
    """Raise Misconfigured if no person approved this content of a project file."""
    if not is_trusted(path, digest):
        raise ConfigValue(None, str(path)).wrong(
            "belongs to this folder, and you have not approved its content; read it, then run "
            f"`{TRUST_COMMAND}`, or name the file with --config"
        )
