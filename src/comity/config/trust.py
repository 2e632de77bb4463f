"""The project files that a person approved, each by its SHA-256.

A configuration starts programs. A file that comes with a folder, such as a cloned repository, has
no effect until a person approved exactly this content.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from comity.config.document import ConfigValue
from comity.config.files import config_id, prepare_state_folder, state_folder
from comity.config.secret_files import read_secret, write_secret
from comity.errors import Misconfigured

_FOLDER = "trust"


def content_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def trust_record(path: Path) -> Path:
    """Return the file that records which content of a file a person approved."""
    return state_folder() / _FOLDER / config_id(path)


def trust_file(path: Path, digest: str, environ: Mapping[str, str] = os.environ) -> None:
    """Record that a person approved this content of a file. Raises Misconfigured."""
    folder = prepare_state_folder(_FOLDER, environ=environ)
    try:
        write_secret(folder / config_id(path), f"{digest}\n".encode())
    except OSError as problem:
        raise Misconfigured(f"{folder} cannot be written: {problem.strerror}") from None


def is_trusted(path: Path, digest: str) -> bool:
    """Return whether a person approved this content of a file."""
    try:
        return read_secret(trust_record(path), "trust", must_be_own=True) == digest.encode()
    except Misconfigured:
        return False


def require_trust(path: Path, digest: str) -> None:
    """Raise Misconfigured if no person approved this content of a project file."""
    if not is_trusted(path, digest):
        raise ConfigValue(None, str(path)).wrong(
            "belongs to this folder, and you have not approved its content; read it, then run "
            "`comity config trust`, or name the file with --config"
        )
