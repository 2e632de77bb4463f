"""What arguments a grant with a condition covers: tests at JSON pointers, and no argument beside.

Rule 1: whatever was not named is not covered: another argument, another type, a missing one.
Rule 2: a path or a URL that two readers could take differently is not covered. (attack 11)
Rule 3: a condition that cannot be read covers nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from comity.rules import paths
from comity.rules.options import words
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

MOST_TESTS: Final = 32
MOST_CHOICES: Final = 16
MOST_LEAVES: Final = 64
DEEPEST: Final = 8
LONGEST: Final = 16 * 1024
_SHOWN: Final = 60
_MEMBERS: Final = frozenset({"paths", "only", "definition"})
_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]*"
)
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+)(?::(?P<port>\d{1,5}))?"
    r"(?:[/?#][A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*)?"
)
_PORTS: Final = {"https": "443", "http": "80"}
_WHOLE_SYSTEM: Final = words(
    "/ /bin /boot /dev /etc /home /lib /lib64 /media /mnt /opt /private /proc /root /run /sbin "
    "/srv /sys /tmp /usr /var /users /library /system /applications /volumes /windows "
    "/private/etc /private/var /private/tmp /usr/local /usr/share /usr/lib /var/lib"
)
"""Trees that hold far more than one piece of work; in small letters."""

_HOMES: Final = ("/home", "/users")


@dataclass(frozen=True, slots=True)
class Under:
    """A path in a tree of directories, or the tree itself; nothing hidden that is below it."""

    tree: str

    def covers(self, value: object) -> bool:
        if not isinstance(value, str) or paths.path_problem(value) is not None:
            return False
        plain = paths.collapsed(value)
        if plain == self.tree:
            return True
        below = plain.removeprefix(self.tree + "/")
        # A file that begins with a dot holds settings and secrets more often than anybody's work.
        return below != plain and not below.startswith(".") and "/." not in below

    def words(self, name: str) -> str:
        return f"{name} under {self.tree}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these very values, of the very same types."""

    values: tuple[object, ...]

    def covers(self, value: object) -> bool:
        return any(same(value, each) for each in self.values)

    def words(self, name: str) -> str:
        return f"{name} {' or '.join(_shown(each) for each in self.values)}"


@dataclass(frozen=True, slots=True)
class Host:
    """A URL of one host: no user before it, the scheme's own port, any path behind it."""

    host: str
    scheme: str = "https"

    def covers(self, value: object) -> bool:
        return isinstance(value, str) and host_of(value) == (self.scheme, self.host)

    def words(self, name: str) -> str:
        return f"{name} at {self.scheme}://{self.host}"


type Test = Under | OneOf | Host


@dataclass(frozen=True, slots=True)
class Condition:
    """A test for each value of the arguments, by its pointer; and the names that they may have.

    `definition` is the digest of the tool's definition that it was meant for, where it says one.
    """

    tests: Mapping[str, Test]
    only: frozenset[str]
    definition: str = ""

    def covers(self, arguments: object) -> bool:
        found = leaves(arguments)
        if found is None or found.keys() != self.tests.keys():
            return False
        if not cast("Mapping[str, object]", arguments).keys() <= self.only:
            return False
        return all(self.tests[pointer].covers(value) for pointer, value in found.items())

    def words(self) -> str:
        """For people: what a call must look like."""
        trees = [test for test in self.tests.values() if isinstance(test, Under)]
        # The one path of a call needs no name.
        alone = trees[0] if len(trees) == 1 else None
        told = [
            test.words(_named(pointer))
            for pointer, test in sorted(self.tests.items())
            if test is not alone
        ]
        head = [] if alone is None else [f"under {alone.tree}"]
        tail = [f"with {', '.join(told)}"] if told else []
        return ", ".join(head + tail) or "without arguments"


def read(where: object) -> Condition:
    """A condition as it is written; raises MalformedMessage with what is wrong."""
    if not isinstance(where, Mapping):
        raise _refused("a condition is a table with paths and only")
    said = cast("Mapping[str, object]", where)
    strange = sorted(str(each) for each in said.keys() - _MEMBERS)
    if strange:
        raise _refused(f"a condition has paths and only, but no {strange[0]!r:.80}")
    only, tests, definition = said.get("only"), said.get("paths"), said.get("definition", "")
    if not isinstance(only, list) or not isinstance(tests, Mapping):
        raise _refused("a condition needs paths, a table, and only, a list of argument names")
    names, written = cast("list[object]", only), cast("Mapping[str, object]", tests)
    if len(names) > MOST_TESTS or len(written) > MOST_TESTS:
        raise _refused(f"a condition has at most {MOST_TESTS} tests")
    if not all(isinstance(name, str) for name in names) or not isinstance(definition, str):
        raise _refused("only is a list of argument names, and definition is a digest")
    found = {pointer: _test(pointer, each) for pointer, each in written.items()}
    heads = {_parts(pointer)[0] for pointer in found}
    if heads != set(names):
        raise _refused("only must name those arguments that paths has tests for")
    if len(canonical(said)) > LONGEST:
        raise _refused(f"a condition has at most {LONGEST} bytes")
    return Condition(found, frozenset(cast("list[str]", names)), definition)


def read_or_none(where: object) -> Condition | None:
    """The same; None for what covers nothing."""
    try:
        return read(where)
    except MalformedMessage:
        return None


def canonical(where: Mapping[str, object]) -> bytes:
    """The one way of writing a condition, which tells it from others. Raises MalformedMessage."""
    try:
        return msgspec.json.encode(where, order="deterministic")
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        raise _refused("a condition must be something that JSON can hold") from None


def leaves(arguments: object) -> dict[str, object] | None:
    """Every value among the arguments by its pointer; a list is one value. None for too much."""
    if not isinstance(arguments, Mapping):
        return None
    found: dict[str, object] = {}
    waiting = [("", cast("Mapping[str, object]", arguments), 1)]
    while waiting:
        above, members, depth = waiting.pop()
        if depth > DEEPEST or len(found) + len(members) > MOST_LEAVES:
            return None
        for name, value in members.items():
            pointer = f"{above}/{name.replace('~', '~0').replace('/', '~1')}"
            if isinstance(value, Mapping) and value:
                waiting.append((pointer, cast("Mapping[str, object]", value), depth + 1))
            else:
                found[pointer] = value
    return found


def same(one: object, other: object) -> bool:
    """Whether two values are the same JSON; one number is not another's text, nor true a one."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        this, that = cast("dict[str, object]", one), cast("dict[str, object]", other)
        return this.keys() == that.keys() and all(same(this[name], that[name]) for name in this)
    if isinstance(one, list):
        these, those = cast("list[object]", one), cast("list[object]", other)
        return len(these) == len(those) and all(map(same, these, those))
    return one == other


def host_of(url: str) -> tuple[str, str] | None:
    """The scheme and the host of a URL that can be read in one way only; None for any other."""
    found = _URL.fullmatch(url) if len(url) <= LONGEST else None
    if found is None or found["port"] not in (None, _PORTS[found["scheme"]]):
        return None
    return (found["scheme"], found["host"]) if _HOST.fullmatch(found["host"]) else None


def is_too_wide(tree: str) -> bool:
    """Whether a tree is a system's own, or a person's whole home."""
    folded = tree.casefold()
    return folded in _WHOLE_SYSTEM or folded.rpartition("/")[0] in _HOMES


def _test(pointer: str, written: object) -> Test:
    said = dict(cast("Mapping[str, object]", written)) if isinstance(written, Mapping) else None
    match said:
        case {"under": str(tree), **rest} if not rest:
            return _under(tree)
        case {"is": value, **rest} if not rest:
            return OneOf(_bounded([value]))
        case {"in": values, **rest} if not rest and isinstance(values, list):
            return OneOf(_bounded(cast("list[object]", values)))
        case {"host": str(host), **rest} if rest.keys() <= {"scheme"}:
            return _host(host, rest.get("scheme", "https"))
        case _:
            raise _refused(f"the test at {pointer!r:.80} must be one of: under, is, in, host")


def _under(tree: str) -> Under:
    problem = paths.path_problem(tree)
    if problem is not None:
        raise _refused(f"the tree {tree!r:.80} {problem}")
    if tree != paths.collapsed(tree):
        raise _refused(f"the tree {tree!r:.80} has a / too many")
    if is_too_wide(tree):
        raise _refused(f"the tree {tree!r:.80} is too wide: name a directory inside of it")
    return Under(tree)


def _host(host: str, scheme: object) -> Host:
    if not _HOST.fullmatch(host) or scheme not in _PORTS:
        raise _refused(f"{host!r:.80} must be one host in small letters, with https or http")
    return Host(host, str(scheme))


def _bounded(values: Sequence[object]) -> tuple[object, ...]:
    if not 0 < len(values) <= MOST_CHOICES:
        raise _refused(f"a test has 1 to {MOST_CHOICES} values")
    if any(_depth(each) > DEEPEST for each in values):
        raise _refused("a value is nested too deep")
    return tuple(values)


def _depth(value: object) -> int:
    """How deeply it is nested, as far as that is too deep."""
    level: list[object] = [value]
    for depth in range(DEEPEST + 1):
        inner: list[object] = []
        for each in level:
            if isinstance(each, Mapping):
                inner += cast("Mapping[str, object]", each).values()
            elif isinstance(each, list):
                inner += cast("list[object]", each)
        if not inner:
            return depth
        level = inner
    return DEEPEST + 1


def _parts(pointer: str) -> list[str]:
    if not pointer.startswith("/"):
        raise _refused(f"{pointer!r:.80} must be a JSON pointer, as /path")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def _named(pointer: str) -> str:
    return ".".join(_parts(pointer))


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode(errors="replace")
    plain = text if text.isprintable() and text else ascii(text)
    return plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}…"


def _refused(because: str) -> MalformedMessage:
    return MalformedMessage(because, INVALID_PARAMS)
