"""Conditions of a grant on the arguments of a call."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.toolkit.text import word_set
from comity.validation import paths

MAX_TESTS: Final = 32
MAX_CHOICES: Final = 16
MAX_VALUES: Final = 64
MAX_DEPTH: Final = 8
MAX_CONDITION_BYTES: Final = 16 * 1024
_MAX_SHOWN_LETTERS: Final = 60
_MEMBERS: Final = frozenset({"paths", "only", "definition"})
_HOST_PATTERN: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]*"
)
_URL_PATTERN: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+)(?::(?P<port>\d{1,5}))?"
    r"(?:[/?#][A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*)?"
)
_PORTS: Final = {"https": "443", "http": "80"}
_SYSTEM_TREES: Final = word_set(
    "/ /bin /boot /dev /etc /home /lib /lib64 /media /mnt /opt /private /proc /root /run /sbin "
    "/srv /sys /tmp /usr /var /users /library /system /applications /volumes /windows "
    "/private/etc /private/var /private/tmp /usr/local /usr/share /usr/lib /var/lib"
)
"""Directories too broad for a condition, in lower case."""

_HOME_ROOTS: Final = ("/home", "/users")


@dataclass(frozen=True, slots=True)
class PathUnder:
    """Accepts a directory and the paths below it, except hidden files and directories."""

    tree: str

    def covers(self, value: object) -> bool:
        if not isinstance(value, str) or paths.path_problem(value) is not None:
            return False
        plain = paths.collapse_slashes(value)
        if plain == self.tree:
            return True
        below = plain.removeprefix(self.tree + "/")
        # Dotfiles usually hold settings and secrets, so a condition never covers them.
        return below != plain and not below.startswith(".") and "/." not in below

    def describe(self, name: str) -> str:
        return f"{name} under {self.tree}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Accepts any of a list of values. The JSON types must match too."""

    values: tuple[object, ...]

    def covers(self, value: object) -> bool:
        return any(is_same_json(value, each) for each in self.values)

    def describe(self, name: str) -> str:
        return f"{name} {' or '.join(_value_text(each) for each in self.values)}"


@dataclass(frozen=True, slots=True)
class UrlHost:
    """Accepts URLs of one host, with any path.

    A URL with user information or with a port other than the default of its scheme does not match.
    """

    host: str
    scheme: str = "https"

    def covers(self, value: object) -> bool:
        return isinstance(value, str) and host_of(value) == (self.scheme, self.host)

    def describe(self, name: str) -> str:
        return f"{name} at {self.scheme}://{self.host}"


type Test = PathUnder | OneOf | UrlHost


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the arguments of a call.

    `tests` maps the JSON pointer of each value to its test. `only` holds the permitted argument
    names. `definition` is the digest of the tool definition that the condition is bound to, or
    empty.
    """

    tests: Mapping[str, Test]
    only: frozenset[str]
    definition: str = ""

    def covers(self, arguments: object) -> bool:
        found = flatten_arguments(arguments)
        if found is None or found.keys() != self.tests.keys():
            return False
        if not cast("Mapping[str, object]", arguments).keys() <= self.only:
            return False
        return all(self.tests[pointer].covers(value) for pointer, value in found.items())

    def describe(self) -> str:
        """Describe the condition in words, for people."""
        trees = [test for test in self.tests.values() if isinstance(test, PathUnder)]
        # The only path of a call needs no argument name.
        alone = trees[0] if len(trees) == 1 else None
        told = [
            test.describe(_pointer_name(pointer))
            for pointer, test in sorted(self.tests.items())
            if test is not alone
        ]
        head = [] if alone is None else [f"under {alone.tree}"]
        tail = [f"with {', '.join(told)}"] if told else []
        return ", ".join(head + tail) or "without arguments"


def parse_condition(where: object) -> Condition:
    """Parse a condition. Raises MalformedMessage that says what is wrong with it."""
    if not isinstance(where, Mapping):
        raise _malformed("a condition is a table with paths and only")
    said = cast("Mapping[str, object]", where)
    strange = sorted(str(each) for each in said.keys() - _MEMBERS)
    if strange:
        raise _malformed(f"a condition has paths and only, but no {strange[0]!r:.80}")
    only, tests, definition = said.get("only"), said.get("paths"), said.get("definition", "")
    if not isinstance(only, list) or not isinstance(tests, Mapping):
        raise _malformed("a condition needs paths, a table, and only, a list of argument names")
    names, written = cast("list[object]", only), cast("Mapping[str, object]", tests)
    if len(names) > MAX_TESTS or len(written) > MAX_TESTS:
        raise _malformed(f"a condition has at most {MAX_TESTS} tests")
    if not all(isinstance(name, str) for name in names) or not isinstance(definition, str):
        raise _malformed("only is a list of argument names, and definition is a digest")
    found = {pointer: _parse_test(pointer, each) for pointer, each in written.items()}
    heads = {_pointer_parts(pointer)[0] for pointer in found}
    if heads != set(names):
        raise _malformed("only must name those arguments that paths has tests for")
    if len(canonical_condition(said)) > MAX_CONDITION_BYTES:
        raise _malformed(f"a condition has at most {MAX_CONDITION_BYTES} bytes")
    return Condition(found, frozenset(cast("list[str]", names)), definition)


def parse_or_none(where: object) -> Condition | None:
    """Parse a condition, or return None if it is malformed."""
    try:
        return parse_condition(where)
    except MalformedMessage:
        return None


def canonical_condition(where: Mapping[str, object]) -> bytes:
    """Encode a condition in its canonical form, which identifies it.

    Raises MalformedMessage if JSON cannot represent the condition.
    """
    try:
        return msgspec.json.encode(where, order="deterministic")
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        raise _malformed("a condition must be something that JSON can hold") from None


def flatten_arguments(arguments: object) -> dict[str, object] | None:
    """Map the JSON pointer of each value to the value. A list counts as one value.

    Returns None if the arguments are no object, too deeply nested or too many.
    """
    if not isinstance(arguments, Mapping):
        return None
    found: dict[str, object] = {}
    waiting = [("", cast("Mapping[str, object]", arguments), 1)]
    while waiting:
        above, members, depth = waiting.pop()
        if depth > MAX_DEPTH or len(found) + len(members) > MAX_VALUES:
            return None
        for name, value in members.items():
            pointer = f"{above}/{name.replace('~', '~0').replace('/', '~1')}"
            if isinstance(value, Mapping) and value:
                waiting.append((pointer, cast("Mapping[str, object]", value), depth + 1))
            else:
                found[pointer] = value
    return found


def is_same_json(one: object, other: object) -> bool:
    """Whether two values are the same JSON.

    Types count: the number 1 differs from the text "1" and from true.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        this, that = cast("dict[str, object]", one), cast("dict[str, object]", other)
        return this.keys() == that.keys() and all(
            is_same_json(this[name], that[name]) for name in this
        )
    if isinstance(one, list):
        these, those = cast("list[object]", one), cast("list[object]", other)
        return len(these) == len(those) and all(map(is_same_json, these, those))
    return one == other


def host_of(url: str) -> tuple[str, str] | None:
    """Return the scheme and the host of a URL.

    Returns None for a URL that parsers could read in different ways.
    """
    found = _URL_PATTERN.fullmatch(url) if len(url) <= MAX_CONDITION_BYTES else None
    if found is None or found["port"] not in (None, _PORTS[found["scheme"]]):
        return None
    return (found["scheme"], found["host"]) if _HOST_PATTERN.fullmatch(found["host"]) else None


def is_too_wide(tree: str) -> bool:
    """Whether a directory is a system directory or the whole home directory of a user."""
    folded = tree.casefold()
    return folded in _SYSTEM_TREES or folded.rpartition("/")[0] in _HOME_ROOTS


def _parse_test(pointer: str, test_value: object) -> Test:
    said = (
        dict(cast("Mapping[str, object]", test_value)) if isinstance(test_value, Mapping) else None
    )
    match said:
        case {"under": str(tree), **rest} if not rest:
            return _parse_tree(tree)
        case {"is": value, **rest} if not rest:
            return OneOf(_check_values([value]))
        case {"in": values, **rest} if not rest and isinstance(values, list):
            return OneOf(_check_values(cast("list[object]", values)))
        case {"host": str(host), **rest} if rest.keys() <= {"scheme"}:
            return _parse_host(host, rest.get("scheme", "https"))
        case _:
            raise _malformed(f"the test at {pointer!r:.80} must be one of: under, is, in, host")


def _parse_tree(tree: str) -> PathUnder:
    problem = paths.path_problem(tree)
    if problem is not None:
        raise _malformed(f"the tree {tree!r:.80} {problem}")
    if tree != paths.collapse_slashes(tree):
        raise _malformed(f"the tree {tree!r:.80} has a / too many")
    if is_too_wide(tree):
        raise _malformed(f"the tree {tree!r:.80} is too wide: name a directory inside of it")
    return PathUnder(tree)


def _parse_host(host: str, scheme: object) -> UrlHost:
    if not _HOST_PATTERN.fullmatch(host) or scheme not in _PORTS:
        raise _malformed(f"{host!r:.80} must be one host in small letters, with https or http")
    return UrlHost(host, str(scheme))


def _check_values(values: Sequence[object]) -> tuple[object, ...]:
    if not 0 < len(values) <= MAX_CHOICES:
        raise _malformed(f"a test has 1 to {MAX_CHOICES} values")
    if any(_depth(each) > MAX_DEPTH for each in values):
        raise _malformed("a value is nested too deep")
    return tuple(values)


def _depth(value: object) -> int:
    """Return the nesting depth of a value, counting no further than one above the limit."""
    level: list[object] = [value]
    for depth in range(MAX_DEPTH + 1):
        inner: list[object] = []
        for each in level:
            if isinstance(each, Mapping):
                inner += cast("Mapping[str, object]", each).values()
            elif isinstance(each, list):
                inner += cast("list[object]", each)
        if not inner:
            return depth
        level = inner
    return MAX_DEPTH + 1


def _pointer_parts(pointer: str) -> list[str]:
    if not pointer.startswith("/"):
        raise _malformed(f"{pointer!r:.80} must be a JSON pointer, as /path")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def _pointer_name(pointer: str) -> str:
    return ".".join(_pointer_parts(pointer))


def _value_text(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode(errors="replace")
    plain = text if text.isprintable() and text else ascii(text)
    return plain if len(plain) <= _MAX_SHOWN_LETTERS else f"{plain[:_MAX_SHOWN_LETTERS]}…"


def _malformed(reason: str) -> MalformedMessage:
    return MalformedMessage(reason, INVALID_PARAMS)
