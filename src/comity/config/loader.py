"""Loading of one configuration file. Syntax errors have their line."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from comity.config.document import (
    ConfigError,
    ConfigValue,
    SourcePositions,
    format_key_path,
    positions_in_json,
    positions_in_toml,
    strict_json,
)
from comity.config.trust import content_digest
from comity.errors import Misconfigured

FILE_BYTES: Final = 1024 * 1024
_TOML_PLACE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file as written. The lines of its keys are computed when they are needed."""

    document: ConfigValue
    positions: Callable[[], SourcePositions]
    content: bytes = field(repr=False)
    is_toml: bool = False


def parse_config_file(
    path: Path, check_digest: Callable[[Path, str], None] | None = None
) -> ConfigFile:
    """Parse a file as TOML if its name says so, and else as JSON.

    `check_digest` may refuse exactly the content that is parsed, by raising Misconfigured.
    """
    data = read_config_bytes(path)
    if check_digest is not None:
        check_digest(path, content_digest(data))
    text = _text(path, data)
    if path.suffix.lower() == ".toml":
        return ConfigFile(
            _from_toml(str(path), text), lambda: positions_in_toml(text), data, is_toml=True
        )
    # Editors write JSON with comments and trailing commas.
    strict = strict_json(text)
    return ConfigFile(_from_json(str(path), strict), lambda: positions_in_json(strict), data)


def read_config_bytes(path: Path) -> bytes:
    """Return the content of a file. Raises Misconfigured if it is missing or too long."""
    file = ConfigValue(None, str(path))
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_BYTES + 1)
    except FileNotFoundError:
        raise file.wrong("there is no such file; check the path, or create the file") from None
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise file.wrong(f"cannot be read ({why}); check the path") from None
    if len(data) > FILE_BYTES:
        raise file.wrong(f"has over {FILE_BYTES} bytes; is it really a configuration?")
    return data


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise _at(str(path), line, "is not UTF-8; save it as UTF-8") from None


# All errors drop their cause, because it holds the text of the file and its secrets.


def _from_toml(file: str, text: str) -> ConfigValue:
    try:
        return ConfigValue(tomllib.loads(text), file)
    except tomllib.TOMLDecodeError as problem:
        what = _TOML_PLACE.sub("", str(problem))
        found = _TOML_PLACE.search(str(problem))
        if found is None or found[1] is None:
            raise _at(file, text.count("\n") + 1, f"is not TOML: {what}") from None
        raise _at(file, int(found[1]), f"is not TOML: {what}, at column {found[2]}") from None
    except ValueError:
        raise ConfigValue(None, file).wrong("holds a number with too many digits") from None
    except RecursionError:
        raise _too_deep(file) from None


def _from_json(file: str, text: str) -> ConfigValue:
    repeated: list[str] = []

    def table(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            times = Counter(name for name, _ in pairs)
            repeated.extend(name for name in times if times[name] > 1)
        return found

    try:
        document: object = json.loads(
            text, object_pairs_hook=table, parse_constant=_refuse_constant(file)
        )
    except json.JSONDecodeError as problem:
        what = f"is not JSON: {problem.msg.removesuffix(' at')}, at column {problem.colno}"
        raise _at(file, problem.lineno, what) from None
    except ValueError:
        raise ConfigValue(None, file).wrong("holds a number with too many digits") from None
    except RecursionError:
        raise _too_deep(file) from None
    if repeated:
        lines = {place[-1]: line for place, line in positions_in_json(text).repeated.items()}
        problem = (
            f"the key {format_key_path((repeated[0],))!r} appears twice in one object; remove one"
        )
        raise _at(file, lines.get(repeated[0]), problem)
    return ConfigValue(document, file)


def _at(file: str, line: int | None, problem: str) -> Misconfigured:
    return Misconfigured(ConfigError(file, (), "", problem, line))


def _too_deep(file: str) -> Misconfigured:
    return ConfigValue(None, file).wrong("is nested too deeply; is it really a configuration?")


def _refuse_constant(file: str) -> Callable[[str], NoReturn]:
    def refuse(name: str) -> NoReturn:
        raise ConfigValue(None, file).wrong(f"{name} is not JSON; write a number")

    return refuse
