"""Values of settings from environment variables, and from the files that `*_FILE` variables name.

An empty variable counts as unset. The errors name the variable and never show its value.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from comity.config.document import ConfigError, ConfigValue, nearest_name
from comity.config.fields import FieldType
from comity.config.secret_files import FILE_SUFFIX, variable_text
from comity.errors import Misconfigured

PREFIX: Final = "COMITY_"

# Kubernetes describes each Service of a namespace to each container. For a Service with the name
# `comity` it sets COMITY_PORT to tcp://10.0.0.1:2664.
_SERVICE_LINK: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP)(_.+)?)$")
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")


def variable_of(table: str, key: str) -> str:
    """Return the variable of a setting: `limits.max_sessions` is COMITY_LIMITS_MAX_SESSIONS."""
    return f"{PREFIX}{table}_{key}".upper() if table else f"{PREFIX}{key}".upper()


def read_variable(name: str, environ: Mapping[str, str]) -> ConfigValue | None:
    """Return the value of NAME or the content of the file that NAME_FILE names.

    Raises Misconfigured if both are set, or if the file cannot be read.
    """
    if name.endswith("_PORT") and _SERVICE_ADDRESS.match(environ.get(name, "")):
        environ = {**environ, name: ""}
    has_file = bool(environ.get(name + FILE_SUFFIX))
    variable = name + FILE_SUFFIX if has_file else name
    try:
        text = variable_text(name, environ)
    except Misconfigured as problem:
        said = str(problem).removeprefix(f"{variable}: ")
        raise Misconfigured(ConfigError(variable, (), "", said)) from None
    return ConfigValue(text, variable) if text or has_file else None


def read_setting(written: ConfigValue, kind: FieldType) -> Any:
    """Read the text of a variable as a value of this type. Raises Misconfigured."""
    return kind.read(ConfigValue(_parse(written.text(), kind.schema), written.file))


def _parse(text: str, schema: Mapping[str, object]) -> object:
    """Return the value that a user would write in a file for this text."""
    if schema.get("type") == "string" or "enum" in schema:
        return text
    if schema.get("type") == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if schema.get("type") == "array" and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text


def unknown_variables(
    environ: Mapping[str, str], known: Iterable[str], tables: Iterable[str]
) -> list[Misconfigured]:
    """Return an error for each variable that names a table of settings, but no setting in it.

    A misspelt variable would otherwise have no effect.
    """
    names = set(known)
    starts = tuple(variable_of(table, "") for table in tables if table)
    strange = [
        name
        for name in sorted(environ)
        if name.startswith(starts)
        and not names & {name, name.removesuffix(FILE_SUFFIX)}
        and not _SERVICE_LINK.search(name)
        and not _SERVICE_ADDRESS.match(environ[name])
    ]
    return [_unknown(name, names) for name in strange]


def _unknown(name: str, known: Iterable[str]) -> Misconfigured:
    near = nearest_name(name, known)
    hint = f"; did you mean {near}?" if near else ""
    return ConfigValue(None, name).wrong(f"there is no such setting{hint}")
