"""Every URL, host and address in a text, and why one of them is refused."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from comity.rules import addresses
from comity.rules.meanings import Meaning
from comity.rules.validators import Rules

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ANY_URL: Final = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]{0,31}:[/\\]+[^\s"'<>`]+""")
_SLASHES: Final = re.compile(r":[/\\]")
_SCHEME_BEFORE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}\Z")
_TOKENS: Final = re.compile(r"""[^\s"'<>`(),;|{}=]+""")
_SPACE: Final = re.compile(r"\s")
_LONGEST_TOKEN: Final = 300
# Where in a text an address or a local name may be; the word around it is looked at closely.
# Each begins with a sign that is seldom, so that the rest is passed over quickly.
_LIKE_A_HOST: Final = (
    re.compile(r"[0-9](?<![\w.][0-9])[0-9a-fA-FxX]{0,16}(?:\.[0-9][0-9a-fA-FxX]{0,16}){1,3}(?!\w)"),
    re.compile(r"0[xX](?<![\w.]0[xX])[0-9a-fA-F]{7,8}(?!\w)"),
    re.compile(r":[0-9a-fA-F]{0,4}:"),
    re.compile(r"[lL][oO][cC][aA][lL][hH][oO][sS][tT]"),
    re.compile(r"\.[iI][nN][tT][eE][rR][nN][aA][lL](?!\w)"),
)
_SELDOM: Final = re.compile(r"0[xX]|[lL][oO][cC][aA][lL][hH]")
_QUAD: Final = re.compile(r"(?:0[xX][0-9a-fA-F]+|\d+)(?:\.(?:0[xX][0-9a-fA-F]+|\d+)){3}\.?")
_LOOPBACK_SHORT: Final = re.compile(r"(?:127|0177|0x7[fF]|0+)(?:\.(?:0[xX][0-9a-fA-F]+|\d+)){1,2}")
_HEX_DWORD: Final = re.compile(r"0[xX][0-9a-fA-F]{7,8}")
_PORT: Final = re.compile(r"\d{0,5}")
_OPAQUE: Final = frozenset(
    {"data", "javascript", "vbscript", "file", "blob", "about", "jar", "view-source"}
)
_TRAILING: Final = ".,;:!?)]}'\""
_WITHOUT_BRACKET: Final = _TRAILING.replace("]", "")
MOST_NAMES: Final = 64
MOST_PLACES: Final = 2_000


class Seen(NamedTuple):
    """Why a text is refused, or the names in it that have to be resolved."""

    problem: str | None
    names: tuple[str, ...] = ()


FINE: Final = Seen(None)


def examine(text: str, meaning: Meaning, rules: Rules) -> Seen:
    """What is to be said of a text, by what it is to its tool."""
    if meaning in (Meaning.URL, Meaning.HOST):
        bare = text.strip()
        if bare != text or _unreadable(bare):
            return Seen("it holds signs that readers of URLs treat differently")
        if meaning is Meaning.HOST and not _ANY_URL.match(bare):
            return _authority(bare, rules)
        return _url(bare, rules)
    return _prose(text, rules)


def _unreadable(text: str) -> bool:
    odd = "\\" in text or " " in text or not text.isprintable()
    return odd or len(text) > addresses.MOST_CHARACTERS


def _url(text: str, rules: Rules) -> Seen:
    if not text:
        return FINE
    if text.startswith("//"):
        return _authority(_until_path(text.lstrip("/")), rules)
    scheme = _SCHEME.match(text)
    if scheme is None or _is_host_and_port(text):
        if text.startswith(("/", "?", "#")):
            return FINE  # below whatever address the server itself has
        return _authority(_until_path(text), rules)
    if scheme[1].casefold() not in rules.schemes:
        return Seen(f"its scheme is not among {', '.join(sorted(rules.schemes))}")
    return _authority(_until_path(text[scheme.end() :].lstrip("/")), rules)


def _is_host_and_port(text: str) -> bool:
    head = _until_path(text)
    name, colon, port = head.rpartition(":")
    return bool(colon and name and port.isdigit() and "." in name) or head.startswith(
        ("localhost:", "[")
    )


def _until_path(text: str) -> str:
    return re.split(r"[/?#]", text, maxsplit=1)[0]


def _authority(text: str, rules: Rules) -> Seen:
    authority = _until_path(text)
    if "@" in authority or "%40" in authority.casefold():
        return Seen("it names a user before its host")
    host, port = _without_port(authority)
    if not _PORT.fullmatch(port) or int(port or "0") > 65535:
        return Seen("its port is none")
    problem, name = addresses.host_problem(host, rules.hosts)
    return Seen(problem, (name,) if name else ())


def _without_port(authority: str) -> tuple[str, str]:
    if authority.startswith("["):
        inner, _, rest = authority.partition("]")
        return f"{inner}]", rest.removeprefix(":")
    if authority.count(":") > 1:  # an address of IPv6 without its brackets
        return authority, ""
    host, _, port = authority.partition(":")
    return host, port


def _prose(text: str, rules: Rules) -> Seen:
    """In a text that may be anything, only what can hardly be anything else is looked at."""
    bare = text.strip()
    alone = not _SPACE.search(bare)
    if not alone and ":" not in text and "." not in text and not _SELDOM.search(text):
        return FINE  # nothing that is looked for below is without one of these signs
    scheme = _SCHEME.match(bare)
    if alone and scheme and scheme[1].casefold() in _OPAQUE - rules.schemes:
        return Seen(f"its scheme is not among {', '.join(sorted(rules.schemes))}")
    names: list[str] = []
    for number, seen in enumerate(_seen_in(text, bare if alone else "", rules)):
        if seen.problem is not None:
            return seen
        names += seen.names
        if number >= MOST_PLACES or len(names) > MOST_NAMES:
            return Seen("it names more places than can be looked at")
    return Seen(None, tuple(dict.fromkeys(names)))


def _seen_in(text: str, alone: str, rules: Rules) -> Iterator[Seen]:
    for found in _SLASHES.finditer(text):
        scheme = _SCHEME_BEFORE.search(text[max(0, found.start() - 32) : found.start()])
        if scheme is None:
            continue
        start = found.start() - len(scheme.group())
        whole = _ANY_URL.match(text, start, start + addresses.MOST_CHARACTERS + 1)
        url = whole.group() if whole else ""
        plain = url if url.endswith("]") else url.rstrip(_TRAILING)
        is_odd = _unreadable(plain) and not plain.isascii()
        odd = "\\" in plain or is_odd or len(plain) > addresses.MOST_CHARACTERS
        yield (
            Seen("it holds signs that readers of URLs treat differently")
            if odd
            else _url(plain, rules)
        )
    for pattern in _LIKE_A_HOST:
        reached = 0
        for found in pattern.finditer(text):
            if found.start() < reached:
                continue
            token, reached = _token_around(text, found.start())
            yield _token(token.rstrip(_WITHOUT_BRACKET), bool(alone), rules)
    if (
        alone
        and len(alone) <= _LONGEST_TOKEN
        and (not alone.isascii() or alone[0] in "0123456789/")
    ):
        yield _token(alone, True, rules)


def _token_around(text: str, place: int) -> tuple[str, int]:
    """The whole word that a place is in, as far as a host can reach, and where it ends."""
    before = _TOKENS.match(text[max(0, place - _LONGEST_TOKEN) : place][::-1])
    start = place - (len(before.group()) if before else 0)
    found = _TOKENS.match(text, start, place + _LONGEST_TOKEN)
    return (found.group(), found.end()) if found else ("", place + 1)


def _token(token: str, alone: bool, rules: Rules) -> Seen:
    head = _until_path(token.lstrip("/") if token.startswith("//") else token)
    has_more = len(head) < len(token)
    host, port = _without_port(head.rpartition("@")[2])
    folded = host.casefold().rstrip(".")
    if _is_address(host, alone or bool(port) or has_more):
        return _authority(head.rpartition("@")[2], rules)
    is_local = folded == "localhost" or folded.endswith((".localhost", ".internal"))
    if is_local and (alone or port or has_more or folded != "localhost"):
        return _authority(head.rpartition("@")[2], rules)
    if not token.isascii() and (alone or port) and _is_address(_ascii(host), True):
        return _authority(_ascii(host), rules)
    return FINE


def _ascii(host: str) -> str:
    return addresses.plain_host(host) or ""


def _is_address(host: str, in_place: bool) -> bool:
    """Whether a token is written like an address, and not like a number or a version."""
    if _QUAD.fullmatch(host) or _HEX_DWORD.fullmatch(host):
        return True
    if host.count(":") >= 2 and addresses.address(host) is not None:
        return True
    return in_place and _LOOPBACK_SHORT.fullmatch(host) is not None
