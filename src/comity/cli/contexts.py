"""The contexts of a user: named gateways, each with its URL and key file.

The file never holds a key, only the path of a file with the key.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from comity.cli.exit_status import suggest_name
from comity.config.secret_files import read_secret, write_secret
from comity.config.toml_writer import toml_text
from comity.errors import Misconfigured

CONTEXT_VARIABLE: Final = "COMITY_CONTEXT"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """One gateway that the user gave a name."""

    url: str
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class ContextFile:
    """All contexts, and the name of the current one, if any."""

    contexts: Mapping[str, GatewayContext]
    current: str = ""

    def find(self, name: str) -> GatewayContext:
        """Return the context of that name. Raises Misconfigured if there is none."""
        found = self.contexts.get(name)
        if found is None:
            hint = suggest_name(name, self.contexts) or "`comity context list` lists all contexts."
            raise Misconfigured(f"there is no context {name!r:.80}. {hint}")
        return found


def contexts_path(environ: Mapping[str, str] = os.environ) -> Path:
    named = environ.get("XDG_CONFIG_HOME")
    folder = Path(named) if named else Path.home() / ".config"
    return folder / "comity" / "contexts.toml"


def read_contexts() -> ContextFile:
    """Return the contexts of this user. Raises Misconfigured if the file is not valid."""
    path = contexts_path()
    if not path.exists():
        return ContextFile({})
    try:
        said: dict[str, Any] = tomllib.loads(
            read_secret(path, "contexts", must_be_own=True).decode()
        )
    except ValueError as problem:
        raise Misconfigured(f"{path}: {problem}") from None
    entries: object = said.get("contexts", {})
    current: object = said.get("current", "")
    if not isinstance(entries, dict) or not isinstance(current, str):
        raise Misconfigured(f"{path}: write `current` as a text and [contexts.NAME] as tables")
    found = cast("dict[str, object]", entries)
    return ContextFile({name: _context(path, name, said) for name, said in found.items()}, current)


def _context(path: Path, name: str, said: object) -> GatewayContext:
    fields = cast("dict[str, object]", said) if isinstance(said, dict) else {}
    url, key_file = fields.get("url"), fields.get("key_file", "")
    if not isinstance(url, str) or not isinstance(key_file, str):
        raise Misconfigured(
            f"{path}: context {name!r:.80} needs a `url`, and may have a `key_file`"
        )
    return GatewayContext(url, key_file)


def write_contexts(file: ContextFile) -> Path:
    """Write all contexts. Only this user can read the file. Raises Misconfigured."""
    path = contexts_path()
    lines = [f"current = {toml_text(file.current)}"] if file.current else []
    for name, context in sorted(file.contexts.items()):
        lines += ["", f"[contexts.{toml_text(name)}]", f"url = {toml_text(context.url)}"]
        lines += [f"key_file = {toml_text(context.key_file)}"] if context.key_file else []
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_secret(path, ("\n".join(lines).lstrip() + "\n").encode())
    except OSError as problem:
        raise Misconfigured(f"{path} cannot be written: {problem.strerror}") from None
    return path


def parse_context_name(name: str) -> str:
    """Return a valid name for a context. Raises Misconfigured."""
    if not _NAME.fullmatch(name):
        raise Misconfigured(
            f"{name!r:.80} is no name for a context; use letters, digits, '.', '_' and '-'"
        )
    return name
