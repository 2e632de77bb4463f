"""Public IP addresses, URLs in text, and the validator `network_restricted`."""

import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple
from urllib.parse import unquote

from comity.mcp.refusals import Refusal
from comity.toolkit.text import word_set
from comity.validation.arguments import (
    ArgumentKind,
    ArgumentText,
    ToolDefinition,
    argument_kind_of,
    collect_texts,
)
from comity.validation.rules import NETWORK_RESTRICTED, ValidationRules, Verdict, validator_refusal

MOST_CHARACTERS: Final = 8192
_NOT_PUBLIC_4: Final = [
    IPv4Network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        # Metadata services of clouds in the public address range.
        *("168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "147.75.207.207/32"),
    )
]
_RANGES_4: Final = [
    (int(network.network_address), int(network.broadcast_address)) for network in _NOT_PUBLIC_4
]
_PUBLIC_6: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = [
    IPv6Network(each)
    for each in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48")
]
_LOCAL_NAMES: Final = word_set(
    "localhost localhost.localdomain localhost4 localhost6 ip6-localhost ip6-loopback "
    "broadcasthost metadata metadata.google.internal instance-data kubernetes kubernetes.default"
)
_LOCAL_ENDS: Final = tuple(
    f".{each}"
    for each in sorted(
        word_set(
            "localhost localdomain local internal intranet lan home home.arpa corp private svc "
            "test cluster.local consul docker invalid example.internal onion in-addr.arpa "
            "ip6.arpa"
        )
    )
)
# Names below these domains resolve to the address that is written in them.
_MIRRORS: Final = tuple(
    f".{each}"
    for each in sorted(
        word_set(
            "nip.io sslip.io xip.io localtest.me lvh.me vcap.me lacolhost.com 1u.ms "
            "fuf.me traefik.me rbndr.us localhost.run local.gd backname.io"
        )
    )
)
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_DOTS: Final = str.maketrans({"\u3002": ".", "\uff0e": ".", "\uff61": "."})
_PART_4: Final = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address of a text, in any notation that some program accepts, or None."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in inner:
        try:
            # A zone only matters on the local machine, so it is ignored here.
            return IPv6Address(inner.partition("%")[0])
        except AddressValueError:
            return None
    return _address_4(inner.rstrip("."))


def _address_4(text: str) -> IPv4Address | None:
    """Parse like `inet_aton`: one to four parts, each decimal, octal or hexadecimal."""
    parts = text.split(".")
    if not 1 <= len(parts) <= 4 or not all(_PART_4.fullmatch(part) for part in parts):
        return None
    numbers = [_number(part) for part in parts]
    *head, last = numbers
    # Some programs cut off the excess, so it must not hide an address here.
    value = last % (1 << (8 * (5 - len(parts))))
    for place, number in enumerate(head):
        value |= (number % 256) << (8 * (3 - place))
    return IPv4Address(value)


def _number(part: str) -> int:
    if len(part) > 40:
        return 0
    if part[:2] in ("0x", "0X"):
        return int(part[2:] or "0", 16)
    is_octal = part.startswith("0") and not set(part) & {"8", "9"}
    return int(part, 8 if is_octal else 10)


def is_public(found: IPv4Address | IPv6Address) -> bool:
    """Return whether the address names the same machine everywhere on the internet."""
    if isinstance(found, IPv4Address):
        number = int(found)
        return not any(low <= number <= high for low, high in _RANGES_4)
    inside = found.ipv4_mapped
    if inside is not None:
        return is_public(inside)
    return found in _PUBLIC_6 and not any(found in network for network in _NOT_PUBLIC_6)


def both_readings_are_public(text: str, found: IPv4Address | IPv6Address) -> bool:
    """Return whether both readings of an address are public.

    Some programs read a part with a leading zero as octal, and others as decimal.
    """
    if not is_public(found):
        return False
    if isinstance(found, IPv6Address) or not re.search(r"(?:^|\.)0\d", text):
        return True
    parts = text.strip("[]").rstrip(".").split(".")
    plain = [part if part[:2] in ("0x", "0X") else part.lstrip("0") or "0" for part in parts]
    decimal = _address_4(".".join(plain))
    return decimal is None or is_public(decimal)


def plain_host(host: str) -> str | None:
    """Return a host in the form for a resolver, or None if it is no host in any reading."""
    if len(host) > 1024:
        return None
    text = unquote(unquote(host)).translate(_DOTS)
    text = unicodedata.normalize("NFKC", text).casefold().translate(_DOTS)
    if any(sign in text for sign in "/\\@?#<>^|`{}\"' \t\r\n") or not text:
        return None
    if text.startswith("[") or ":" in text:
        return text if parse_address(text) is not None else None
    text = text.rstrip(".")
    if parse_address(text) is not None:
        return text
    try:
        encoded = text.encode("idna").decode("ascii")
    except UnicodeError:
        return None
    fits = len(encoded) <= 253 and all(_LABEL.fullmatch(each) for each in encoded.split("."))
    return encoded if fits else None


def host_problem(host: str, allowed: frozenset[str] = frozenset()) -> tuple[str | None, str]:
    """Return why a host is refused, or None and the name that needs resolution, if any."""
    plain = plain_host(host)
    if plain is None:
        return "it names a host that cannot be read in one way only", ""
    if is_among(plain, allowed):
        return None, ""
    found = parse_address(plain)
    if found is not None:
        public = both_readings_are_public(plain, found) and "%" not in plain
        return (None if public else "it leads to an address that is not public"), ""
    if plain in _LOCAL_NAMES or plain.endswith(_LOCAL_ENDS) or "." not in plain:
        return "it names a host of this machine or its network", ""
    if f".{plain}".endswith(_MIRRORS):
        return "it names a host that resolves to any address one likes", ""
    return None, plain


def is_among(plain: str, allowed: frozenset[str]) -> bool:
    """Return whether a host is allowed by its name or by its ending (`.example.org`)."""
    return plain in allowed or any(plain.endswith(each) for each in allowed if each.startswith("."))


def answers_problem(answers: Sequence[str]) -> str | None:
    """Return why the resolved addresses of a name are refused. One bad address is enough."""
    if not answers:
        return "its host cannot be resolved"
    for each in answers:
        found = parse_address(each)
        if found is None or "%" in each or not is_public(found):
            return "its host resolves to an address that is not public"
    return None


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ANY_URL: Final = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]{0,31}:[/\\]+[^\s"'<>`]+""")
_SLASHES: Final = re.compile(r":[/\\]")
_SCHEME_BEFORE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}\Z")
_TOKENS: Final = re.compile(r"""[^\s"'<>`(),;|{}=]+""")
_SPACE: Final = re.compile(r"\s")
_MAX_TOKEN_LENGTH: Final = 300
# The places in a text that may hold an address or a local name. The surrounding word is then
# examined. Each pattern begins with a rare character, so that the search is fast.
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
MAX_NAMES: Final = 64
MAX_PLACES: Final = 2_000


class UrlFindings(NamedTuple):
    """The reason to refuse a text, or the names in it that need resolution."""

    problem: str | None
    names: tuple[str, ...] = ()


FINE: Final = UrlFindings(None)


def examine_url_text(text: str, kind: ArgumentKind, rules: ValidationRules) -> UrlFindings:
    """Examine a text by the kind of its argument."""
    if kind in (ArgumentKind.URL, ArgumentKind.HOST):
        bare = text.strip()
        if bare != text or _unreadable(bare):
            return UrlFindings("it holds signs that readers of URLs treat differently")
        if kind is ArgumentKind.HOST and not _ANY_URL.match(bare):
            return _authority(bare, rules)
        return _url(bare, rules)
    return _prose(text, rules)


def _unreadable(text: str) -> bool:
    odd = "\\" in text or " " in text or not text.isprintable()
    return odd or len(text) > MOST_CHARACTERS


def _url(text: str, rules: ValidationRules) -> UrlFindings:
    if not text:
        return FINE
    if text.startswith("//"):
        return _authority(_until_path(text.lstrip("/")), rules)
    scheme = _SCHEME.match(text)
    if scheme is None or _is_host_and_port(text):
        if text.startswith(("/", "?", "#")):
            return FINE  # relative to the address of the server itself
        return _authority(_until_path(text), rules)
    if scheme[1].casefold() not in rules.schemes:
        return UrlFindings(f"its scheme is not among {', '.join(sorted(rules.schemes))}")
    return _authority(_until_path(text[scheme.end() :].lstrip("/")), rules)


def _is_host_and_port(text: str) -> bool:
    head = _until_path(text)
    name, colon, port = head.rpartition(":")
    return bool(colon and name and port.isdigit() and "." in name) or head.startswith(
        ("localhost:", "[")
    )


def _until_path(text: str) -> str:
    return re.split(r"[/?#]", text, maxsplit=1)[0]


def _authority(text: str, rules: ValidationRules) -> UrlFindings:
    authority = _until_path(text)
    if "@" in authority or "%40" in authority.casefold():
        return UrlFindings("it names a user before its host")
    host, port = _without_port(authority)
    if not _PORT.fullmatch(port) or int(port or "0") > 65535:
        return UrlFindings("its port is invalid")
    problem, name = host_problem(host, rules.hosts)
    return UrlFindings(problem, (name,) if name else ())


def _without_port(authority: str) -> tuple[str, str]:
    if authority.startswith("["):
        inner, _, rest = authority.partition("]")
        return f"{inner}]", rest.removeprefix(":")
    if authority.count(":") > 1:  # an IPv6 address without its brackets
        return authority, ""
    host, _, port = authority.partition(":")
    return host, port


def _prose(text: str, rules: ValidationRules) -> UrlFindings:
    """Examine free text. It refuses only what can hardly be anything else than a URL or address."""
    bare = text.strip()
    alone = not _SPACE.search(bare)
    if not alone and ":" not in text and "." not in text and not _SELDOM.search(text):
        return FINE  # every pattern below needs one of these characters
    scheme = _SCHEME.match(bare)
    if alone and scheme and scheme[1].casefold() in _OPAQUE - rules.schemes:
        return UrlFindings(f"its scheme is not among {', '.join(sorted(rules.schemes))}")
    names: list[str] = []
    for number, seen in enumerate(_hosts_in(text, bare if alone else "", rules)):
        if seen.problem is not None:
            return seen
        names += seen.names
        if number >= MAX_PLACES or len(names) > MAX_NAMES:
            return UrlFindings("it names more places than can be looked at")
    return UrlFindings(None, tuple(dict.fromkeys(names)))


def _hosts_in(text: str, alone: str, rules: ValidationRules) -> Iterator[UrlFindings]:
    for found in _SLASHES.finditer(text):
        scheme = _SCHEME_BEFORE.search(text[max(0, found.start() - 32) : found.start()])
        if scheme is None:
            continue
        start = found.start() - len(scheme.group())
        whole = _ANY_URL.match(text, start, start + MOST_CHARACTERS + 1)
        url = whole.group() if whole else ""
        plain = url if url.endswith("]") else url.rstrip(_TRAILING)
        is_odd = _unreadable(plain) and not plain.isascii()
        odd = "\\" in plain or is_odd or len(plain) > MOST_CHARACTERS
        yield (
            UrlFindings("it holds signs that readers of URLs treat differently")
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
        and len(alone) <= _MAX_TOKEN_LENGTH
        and (not alone.isascii() or alone[0] in "0123456789/")
    ):
        yield _token(alone, True, rules)


def _token_around(text: str, place: int) -> tuple[str, int]:
    """Return the word around a position, as far as a host can extend, and its end."""
    before = _TOKENS.match(text[max(0, place - _MAX_TOKEN_LENGTH) : place][::-1])
    start = place - (len(before.group()) if before else 0)
    found = _TOKENS.match(text, start, place + _MAX_TOKEN_LENGTH)
    return (found.group(), found.end()) if found else ("", place + 1)


def _token(token: str, alone: bool, rules: ValidationRules) -> UrlFindings:
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
    return plain_host(host) or ""


def _is_address(host: str, in_place: bool) -> bool:
    """Return whether a token has the form of an address, and not of a number or a version."""
    if _QUAD.fullmatch(host) or _HEX_DWORD.fullmatch(host):
        return True
    if host.count(":") >= 2 and parse_address(host) is not None:
        return True
    return in_place and _LOOPBACK_SHORT.fullmatch(host) is not None


type Resolve = Callable[[str], Awaitable[Sequence[str]]]


class NetworkValidator:
    """The validator `network_restricted`. It answers at once unless it must resolve names."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    def __call__(
        self, tool: ToolDefinition, arguments: Mapping[str, object], rules: ValidationRules
    ) -> Verdict | Awaitable[Verdict]:
        found = collect_texts(arguments)
        if found is None:
            return validator_refusal(
                NETWORK_RESTRICTED, "its arguments hold more than can be looked at"
            )
        names: dict[str, ArgumentText] = {}
        for each in found:
            meaning = argument_kind_of(each.where, each.name, rules.arguments)
            seen = examine_url_text(each.text, meaning, rules)
            if seen.problem is not None:
                return _refusal(seen.problem, each)
            names |= dict.fromkeys(seen.names, each)
        if len(names) > MAX_NAMES:
            return validator_refusal(NETWORK_RESTRICTED, f"it names over {MAX_NAMES} hosts")
        return self._check_resolved(names) if names else None

    async def _check_resolved(self, names: Mapping[str, ArgumentText]) -> Verdict:
        for name, found in names.items():
            problem = answers_problem(await self._resolve(name))
            if problem is not None:
                return _refusal(problem, found)
        return None


def _refusal(problem: str, argument: ArgumentText) -> Refusal:
    return validator_refusal(
        NETWORK_RESTRICTED, problem, argument.where, "Use an address that is public."
    )
