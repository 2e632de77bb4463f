"""What may be registered at run time, by whom, and what is forced upon it. (MGP §15.4, D-30, D-31)

Rule 1: a command is words, never a line for a shell: each word is held against one that the
        operator wrote. Where the operator left a word open it is a plain name and no option.
Rule 2: an interpreter runs only what its words name in full, or a script that is looked at first.
Rule 3: an id stands in a namespace of its own, in small letters, and looks like no other.
Rule 4: without a grant somebody is asked; whoever was denied it is not.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from comity.rules.access import CREDENTIAL, Judgement
from comity.rules.addresses import host_problem
from comity.rules.namesakes import skeleton
from comity.rules.options import words
from comity.rules.patterns import ANY, covers
from comity.rules.phrases import count_noun
from comity.wire.grants import Effect
from comity.wire.parties import Actor, PartyKind
from comity.wire.registration import Wanted

REST: Final = "..."
"""The last word of a pattern that leaves all further words open."""

_SHELLS: Final = words(
    "sh bash dash ash zsh fish ksh csh tcsh rbash busybox toybox cmd powershell pwsh",
    "env xargs sudo doas su runuser nohup setsid timeout nice ionice stdbuf script ssh eval exec",
    "unshare nsenter chroot setpriv strace ltrace gdb find watch parallel time command",
)
_INTERPRETERS: Final = words("node nodejs deno bun ruby perl php lua luajit java tclsh awk gawk")
_PYTHON: Final = re.compile(r"(?:python|pypy)[0-9.]*[a-z]?")
_ID: Final = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_SCRIPT: Final = re.compile(r"[A-Za-z0-9_./-]+\.py")
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")


class Fit(StrEnum):
    """In what way a command is one that the operator allows."""

    NAMED = "named"
    """Its program is the operator's choice."""
    SCRIPT = "script"
    """It runs a file that somebody else wrote."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the operator lets be registered; nothing, until something is named."""

    commands: tuple[str, ...] = ()
    hosts: frozenset[str] = frozenset()
    namespace: str = "dynamic"
    from_network: bool = False
    takes_code: bool = False
    most: int = 20
    most_of_one: int = 5


def pattern_problem(pattern: str) -> str | None:
    """Why an operator's pattern of a command cannot stand; None where it can."""
    first, *others = pattern.split() or [""]
    name = _program(first)
    if not first or ANY in first or first == REST or first.startswith("-"):
        return "must begin with the name of a program"
    if name in _SHELLS:
        return f"must not begin with {name}, which runs anything that it is told"
    if REST in others[:-1]:
        return f"may hold {REST} only as its last word"
    is_open = any(ANY in word or word == REST for word in others)
    if is_open and (name in _INTERPRETERS or _PYTHON.fullmatch(name)):
        return f"must say every word that {name} is given; or, of Python, be its name alone"
    return None


def command_fit(line: tuple[str, ...], patterns: Iterable[str]) -> Fit | None:
    """How a command line fits what the operator allows; None where it does not."""
    if any(_UNSEEN.search(word) for word in line):
        return None
    for pattern in patterns:
        wanted = tuple(pattern.split())
        if wanted == line[:1] and _PYTHON.fullmatch(_program(line[0])):
            if len(line) == 2 and is_script(line[1]):
                return Fit.SCRIPT
        elif _fits(wanted, line):
            return Fit.NAMED
    return None


def _fits(pattern: tuple[str, ...], line: tuple[str, ...]) -> bool:
    if pattern[-1:] == (REST,):
        pattern, line = pattern[:-1], line[: len(pattern) - 1]
    return len(pattern) == len(line) and all(map(_word_fits, pattern, line))


def _word_fits(pattern: str, word: str) -> bool:
    if ANY not in pattern:
        return pattern == word
    is_option = word.startswith("-") and not pattern.startswith("-")
    # What a name of a package may hold; so it is no path, no address and no `name@url`.
    is_plain = _PLAIN.issuperset(set(word) - set(pattern)) and ".." not in word
    return covers(pattern, word) and not is_option and is_plain


def is_script(word: str) -> bool:
    """Whether a word names a file of Python, below some folder, and nothing but that."""
    plain = _SCRIPT.fullmatch(word) is not None and not word.startswith(("-", "/"))
    return plain and ".." not in word.split("/")


def _program(word: str) -> str:
    return word.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".exe")


def id_problem(id: str, namespace: str, others: Iterable[str]) -> str | None:
    """Why a server cannot be called this; `others` are all that have a name already."""
    rest = id.removeprefix(f"{namespace}.")
    if rest == id or _ID.fullmatch(id) is None:
        return (
            f"its id must begin with {namespace}. and go on in small letters a-z, digits and "
            "single . _ - between them"
        )
    look = skeleton(id)
    if any(skeleton(other) == look for other in others):
        return "its id is taken, or looks like one that is"
    return None


def url_problem(url: str, hosts: frozenset[str]) -> tuple[str | None, str]:
    """Why a URL is refused, or None and the name of its host that has yet to be resolved."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its url cannot be read", ""
    is_plain = url.isascii() and url.isprintable() and not set(url) & set(' \\"<>^`{|}#')
    if not is_plain or parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return "its url must be a plain one, as https://example.org/mcp", ""
    if "@" in parts.netloc:
        return "its url must hold no credentials", ""
    problem, name = host_problem(parts.hostname, hosts)
    return (None if problem is None else f"its url is refused: {problem}"), name


def problem(wish: Wanted, allowed: Allowed) -> str | None:
    """What of a wish the operator does not allow, whoever asks for it."""
    if wish.url:
        return url_problem(wish.url, allowed.hosts)[0]
    if not wish.command:
        return None if allowed.takes_code else "servers are not made of code here"
    if command_fit(wish.words, allowed.commands) is None:
        return "its command is none that the operator lets be registered"
    return None


def room_problem(party: str, owners: Iterable[str], allowed: Allowed) -> str | None:
    """Why no more servers can be registered by this party; `owners` are those of all there are."""
    held = list(owners)
    if len(held) >= allowed.most:
        return f"no more than {count_noun(allowed.most, 'server')} may be registered"
    if held.count(party) >= allowed.most_of_one:
        return f"{party} may register no more than {count_noun(allowed.most_of_one, 'server')}"
    return None


def entitlement(actor: Actor, judged: Judgement) -> Effect:
    """Whether an actor may register a server itself, may ask for it, or neither."""
    if actor.kind is PartyKind.SERVER or not actor.party:
        return Effect.DENY
    if judged.effect is not Effect.DENY:
        return judged.effect
    is_decided = judged.grant is not None or judged.forbid is not None
    # The local user may ask, and answers with its operator token.
    is_beyond = judged.because == CREDENTIAL and not actor.is_local
    return Effect.DENY if is_decided or is_beyond else Effect.ASK


def summary(wish: Wanted) -> str:
    """What would be there, in few words for whoever decides."""
    if wish.url:
        return f"calls of its tools go to {wish.url}"
    return "it runs code that is shown here" if wish.code else f"it runs: {' '.join(wish.words)}"


def shown(wish: Wanted) -> dict[str, object]:
    """All that an authority reads before it decides."""
    said: dict[str, object] = {"server": wish.id, "risk": "dangerous", "trust": "sandboxed"}
    said |= {"command": list(wish.words)} if wish.command else {}
    said |= {"url": wish.url} if wish.url else {}
    said |= {"code": wish.code} if wish.code else {}
    said |= {"permissions_required": list(wish.permissions)} if wish.permissions else {}
    return said | {"justification": wish.justification}
