"""Analysis of tool definitions: hidden text, lookalikes, digests and review states."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec
from msgspec import Raw

from comity.errors import (
    PERMISSION_DENIED,
    POLICY_UNKNOWN,
    TOOL_DISABLED,
    MalformedMessage,
)
from comity.mcp import jsonrpc
from comity.mcp.actors import GATEWAY
from comity.mcp.refusals import Refusal
from comity.policy.risk import (
    DefinitionPolicy,
    PermissionDecision,
    Risk,
    SecurityLabel,
    ServerPolicy,
    SuspicionPolicy,
    ToolHints,
    ToolPolicy,
    expand_aliases,
    parse_hints,
    parse_label,
    permission_risk,
)
from comity.storage.values import (
    DOCUMENT_BYTES,
    check_name,
    clean_words,
    encode_document,
    refused_value,
    to_optional_utc,
)
from comity.toolkit.text import is_hidden
from comity.validation.rules import SuggestedValidator, suggest_validators, validators_of

MAX_TEXT_LENGTH: Final = 16_384
MAX_DESCRIPTION: Final = 4000
MAX_NAME_LENGTH: Final = 256
MAX_GAP_LENGTH: Final = 200
"""Characters of white space in one run. A longer run pushes the rest of a text out of sight."""

MAX_FINDINGS: Final = 20

_FLAGS: Final = ("gbeng", "gbsct", "gbwls")
_TAG_FLAG: Final = "|".join(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in name) + "\U000e007f"
    for name in _FLAGS
)
_PICTURE: Final = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
_SKIN: Final = "[\U0001f3fb-\U0001f3ff]"
_EMOJI: Final = rf"{_PICTURE}{_SKIN}?[\ufe0e\ufe0f]?"
# Sequences drawn as one picture: joined emoji, keycaps, and the three flags spelt with tags.
_SEQUENCES: Final = re.compile(rf"{_TAG_FLAG}|{_EMOJI}(?:\u200d{_EMOJI})*|[0-9#*]\ufe0f\u20e3")
# Persian and related scripts put a non-joiner inside words; Indic scripts do so after a virama.
_ARABIC: Final = "[\u0620-\u064a\u066e-\u06d3\u06fa-\u06ff\u0750-\u077f\u08a0-\u08c9]"
_VIRAMA: Final = (
    "[\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d3b\u0d3c\u0d4d\u0dca\u1039\u17d2]"
)
_JOINERS: Final = re.compile(rf"(?<={_ARABIC})\u200c(?={_ARABIC})|(?<={_VIRAMA})[\u200c\u200d]")
_GAP_PATTERN: Final = re.compile(rf"\s{{{MAX_GAP_LENGTH},}}")
_PLAIN_TEXT_PATTERN: Final = re.compile(r"[\n\t\r\x20-\x7e\u00a1-\u00ac\u00ae-\u02ff]*")


_RESERVED_PREFIX: Final = "mgp."
_CONFUSABLE_ALPHABETS: Final = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"})


class SuspicionKind(StrEnum):
    """The ways in which a definition may deceive its reader."""

    HIDDEN = "hidden characters"
    LONG = "too long to be read"
    NAME = "an odd name"
    LOOKALIKE = "looks like another"
    SHADOW = "shares its name"
    MENTION = "mentions another tool"


@dataclass(frozen=True, slots=True)
class DefinitionSuspicion:
    """One finding that an operator should look at before the tool is used."""

    kind: SuspicionKind
    location: str
    description: str


def hidden_characters(text: str) -> str:
    """Return the hidden characters of a text, except those that its emoji and its script need."""
    if text.isascii() and text.isprintable():
        return ""
    if _PLAIN_TEXT_PATTERN.fullmatch(text):
        return ""
    rest = _JOINERS.sub("", _SEQUENCES.sub("", text))
    return "".join(each for each in rest if is_hidden(each))


def reveal_hidden(text: str) -> str:
    """Return a text with its hidden characters written as escapes."""
    if not hidden_characters(text):
        return text
    spelt = (_escape_character(each) if is_hidden(each) else each for each in text)
    return "".join(spelt)


def name_finding(name: str) -> DefinitionSuspicion | None:
    """Return why a name deceives or cannot be used in patterns and paths; None for a plain name."""
    reason = ""
    if hidden_characters(name) or name != name.strip() or any(each in name for each in "\n\r\t"):
        reason = f"it has hidden characters: {reveal_hidden(name)!r:.100}"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"{len(name)} characters"
    elif "*" in name or ".." in name:
        reason = "it would be a pattern, or a path, where names are written"
    elif name.casefold().startswith(_RESERVED_PREFIX):
        reason = f"names that begin with {_RESERVED_PREFIX!r} are the gateway's own"
    elif unicodedata.normalize("NFKC", name) != unicodedata.normalize("NFC", name):
        reason = "some of its letters are other characters dressed up as letters"
    elif len(_alphabets(name)) > 1:
        reason = f"it mixes letters of {' and '.join(sorted(_alphabets(name)))}"
    return DefinitionSuspicion(SuspicionKind.NAME, "/name", reason) if reason else None


def definition_findings(definition: Mapping[str, object]) -> tuple[DefinitionSuspicion, ...]:
    """Return what a definition hides in its keys, descriptions, defaults and examples."""
    found: list[DefinitionSuspicion] = []
    for where, text in _iterate_texts("", definition):
        found += _text_findings(where, text)
        if len(found) >= MAX_FINDINGS:
            break
    return tuple(found[:MAX_FINDINGS])


def _text_findings(where: str, text: str) -> Iterator[DefinitionSuspicion]:
    hidden = hidden_characters(text)
    if hidden:
        some = " ".join(dict.fromkeys(_escape_character(each) for each in hidden))
        yield DefinitionSuspicion(
            SuspicionKind.HIDDEN, where, f"{len(hidden)} of them: {some:.100}"
        )
    if len(text) > MAX_TEXT_LENGTH:
        yield DefinitionSuspicion(
            SuspicionKind.LONG, where, f"{len(text)} characters, more than {MAX_TEXT_LENGTH}"
        )
    elif len(text) > MAX_GAP_LENGTH and _GAP_PATTERN.search(text):
        yield DefinitionSuspicion(
            SuspicionKind.HIDDEN, where, f"a gap of {MAX_GAP_LENGTH} or more blanks before the rest"
        )


def _alphabets(name: str) -> set[str]:
    """Return the alphabets with confusable letters that a name uses."""
    first = (unicodedata.name(each, "").partition(" ")[0] for each in name if each.isalpha())
    return {alphabet for alphabet in first if alphabet in _CONFUSABLE_ALPHABETS}


def _escape_character(character: str) -> str:
    return f"\\u{{{ord(character):x}}}"


def _iterate_texts(pointer: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield every text of a document with the pointer to it; a key counts as a text."""
    if isinstance(value, str):
        yield pointer, value
    elif isinstance(value, dict):
        for key, each in cast("dict[str, object]", value).items():
            escaped = reveal_hidden(key).replace("~", "~0").replace("/", "~1")
            yield f"{pointer}/{escaped}", key
            yield from _iterate_texts(f"{pointer}/{escaped}", each)
    elif isinstance(value, list):
        for number, each in enumerate(cast("list[object]", value)):
            yield from _iterate_texts(f"{pointer}/{number}", each)


type Place = tuple[str, str]
"""A tool: the server, and the server's own name for it."""

_SEPARATORS: Final = re.compile(r"[\s\-_.:/]+")
_LATIN_LOOKALIKES: Final = str.maketrans(
    # Lower-case Cyrillic and Greek letters that look like Latin ones.
    "абвеёзікмнорѕстухуһԁјԛԝѵгпαβγεζηικνορτυχωсу",
    "a6bee3ikmhopsctyxyhdjqwvrnabyezniknoptuxwcy",
)
_DIGIT_LOOKALIKES: Final = str.maketrans("0135i|!$\u0131łøđ", "oleslllsllod")
_DOUBLE_LOOKALIKES: Final = (("rn", "m"), ("vv", "w"))


def name_skeleton(name: str) -> str:
    """Return a name reduced to what a quick reader sees; lookalike names have equal skeletons."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    letters = "".join(each for each in plain if not unicodedata.combining(each))
    glanced = letters.translate(_LATIN_LOOKALIKES).translate(_DIGIT_LOOKALIKES)
    for pair, one in _DOUBLE_LOOKALIKES:
        glanced = glanced.replace(pair, one)
    return _SEPARATORS.sub("_", glanced)


def normalized_name(name: str) -> str:
    """Return a name without matters of style: capital letters and the separators between words."""
    return _SEPARATORS.sub("_", name.casefold())


class LookalikeIndex:
    """All tool names by skeleton.

    A change of one server touches only the names that look like its own.
    """

    def __init__(self) -> None:
        # By skeleton and by name: the servers, each with the time of acceptance. A name that
        # thousands of servers share is compared once.
        self._names_by_skeleton: dict[str, dict[str, dict[str, float]]] = {}

    def add(self, server: str, name: str, accepted_since: float) -> None:
        """Add a tool with the time since when it has been accepted."""
        names = self._names_by_skeleton.setdefault(name_skeleton(name), {})
        names.setdefault(name, {})[server] = accepted_since

    def remove(self, server: str, name: str) -> None:
        look = name_skeleton(name)
        names = self._names_by_skeleton.get(look, {})
        servers = names.get(name, {})
        servers.pop(server, None)
        if not servers:
            names.pop(name, None)
        if not names:
            self._names_by_skeleton.pop(look, None)

    def find_lookalikes(self, name: str) -> list[Place]:
        """Return every tool whose name equals this one or looks like it."""
        names = self._names_by_skeleton.get(name_skeleton(name), {})
        return [(server, each) for each, servers in names.items() for server in servers]

    def find_older(self, server: str, name: str) -> Place | None:
        """Return the older tool that this one could be mistaken for, or None."""
        names = self._names_by_skeleton.get(name_skeleton(name), {})
        if sum(map(len, names.values())) < 2:
            return None
        since = names.get(name, {}).get(server, float("inf"))
        mine = _age_key((server, name), since)
        before: list[tuple[tuple[float, int, Place], Place]] = []
        for other, servers in names.items():
            if other == name:
                continue
            if normalized_name(other) != normalized_name(name):
                first, holder = min((at, holder) for holder, at in servers.items())
            elif server in servers:
                # Between servers, names of equal form are the same name.
                first, holder = servers[server], server
            else:
                continue
            before.append((_age_key((holder, other), first), (holder, other)))
        oldest, rival = min(before, default=(mine, None))
        return rival if oldest < mine else None


def _age_key(place: Place, since: float) -> tuple[float, int, Place]:
    """Return the sort key for age; at equal age the name with fewer unusual letters comes first."""
    return since, len(re.sub(r"[a-z_-]", "", place[1])), place


MAX_DEFINITION_BYTES: Final = 1024 * 1024
"""In bytes. A longer definition is not read and cannot be accepted."""

MAX_DIFFERENCES: Final = 100
MAX_DIFFERENCE_LENGTH: Final = 2_000

# The prefix separates domains: the digest of a definition never equals a digest of other data.
_DIGEST_PREFIX: Final = b"comity tool definition 1\0"
_ABSENT: Final = object()

type Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class DefinitionDifference:
    """One difference between two definitions; None means an absent value."""

    pointer: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.pointer} is new: {self.after}"
        if self.after is None:
            return f"{self.pointer} is gone: {self.before}"
        return f"{self.pointer} was {self.before} and is {self.after}"


def canonical_definition(definition: Mapping[str, Raw], name: str) -> bytes:
    """Return the canonical JSON of a definition under the server's own name for the tool.

    Equal definitions have equal canonical forms. Raises MalformedMessage if the definition is
    ambiguous.
    """
    whole = jsonrpc.to_json({**definition, "name": name})
    return msgspec.json.encode(
        _normalize_numbers(cast("Json", jsonrpc.decode_value(whole))), order="sorted"
    )


def definition_digest(written: bytes) -> str:
    """Return the SHA-256 of a canonical definition, with its domain prefix."""
    return hashlib.sha256(_DIGEST_PREFIX + written).hexdigest()


def drop_members(written: bytes, *members: str) -> bytes:
    """A canonical definition without some of its members."""
    found: dict[str, Json] = jsonrpc.decode_shape(written, dict[str, Any])
    kept = {name: value for name, value in found.items() if name not in members}
    return msgspec.json.encode(kept, order="sorted")


def list_differences(before: bytes, after: bytes) -> list[DefinitionDifference]:
    """List the differences between two canonical definitions, as text for people."""
    found = _differences(
        "", *(jsonrpc.decode_shape(each, dict[str, Any]) for each in (before, after))
    )
    told = [each for _, each in zip(range(MAX_DIFFERENCES + 1), found, strict=False)]
    if len(told) > MAX_DIFFERENCES:
        told[MAX_DIFFERENCES:] = [
            DefinitionDifference("", None, "there are more differences than are shown")
        ]
    return told


def _normalize_numbers(value: Json) -> Json:
    """Return the value with whole floats as integers, since JSON does not tell 1.0 from 1."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: _normalize_numbers(each) for key, each in value.items()}
    return [_normalize_numbers(each) for each in value] if isinstance(value, list) else value


def _differences(pointer: str, before: object, after: object) -> Iterator[DefinitionDifference]:
    old, new = _members_of(before), _members_of(after)
    if old is not None and new is not None and type(before) is type(after):
        # Compare part by part: in Python, {"a": 1} and {"a": true} are equal.
        for key in {**old, **new}:
            place = f"{pointer}/{reveal_hidden(key).replace('~', '~0').replace('/', '~1')}"
            yield from _differences(place, old.get(key, _ABSENT), new.get(key, _ABSENT))
        return
    if type(before) is type(after) and before == after:
        return
    alike = (
        isinstance(before, str)
        and isinstance(after, str)
        and name_skeleton(before) == name_skeleton(after)
    )
    yield DefinitionDifference(pointer, _value_text(before, alike), _value_text(after, alike))


def _members_of(value: object) -> dict[str, object] | None:
    """Return the members of an object by key, or of a list by index; None for other values."""
    if isinstance(value, list):
        return {str(number): each for number, each in enumerate(cast("list[object]", value))}
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _value_text(value: object, is_similar: bool) -> str | None:
    """Return a value as text.

    Two `alike` values are written in ASCII, so that a reader sees the difference.
    """
    if value is _ABSENT:
        return None
    written = reveal_hidden(json.dumps(value, ensure_ascii=is_similar))
    cut = len(written) > MAX_DIFFERENCE_LENGTH
    return f"{written[:MAX_DIFFERENCE_LENGTH]}… ({len(written)} characters)" if cut else written


UNLISTED_DEFINITION: Final = b"{}"
"""The definition of a tool that its server never listed to the gateway."""

MAX_WORDS: Final = 200

# Members that may differ between clients and that no model reads.
_IGNORED_MEMBERS: Final = ("_meta", "execution")
_SECURITY_MEMBER: Final = "security"
# Canonical JSON writes control characters as \u escapes, except DEL and those of white space.
_PLAIN_BYTES_PATTERN: Final = re.compile(rb"[\x20-\x7e]*")
_ESCAPE_PATTERN: Final = re.compile(rb"\\[ubf]|(?:\s|\\[nrt]){100}")
_WORD_PATTERN: Final = re.compile(r"[A-Za-z0-9_.-]{2,128}")
_NAME_LIKE_PATTERN: Final = re.compile(r"[A-Za-z0-9][_.-][A-Za-z0-9_]|[a-z][A-Z]")
_QUOTES: Final = frozenset("`'\"\u2018\u2019\u201c\u201d")
_NO_HINTS: Final = ToolHints()


@dataclass(frozen=True, slots=True)
class DefinitionAnalysis:
    """The analysis of one definition.

    `permissions` is None if the security label says nothing about permissions.
    """

    definition: bytes
    name: str
    digest: str = ""
    label: SecurityLabel | None = None
    hints: ToolHints = _NO_HINTS
    permissions: tuple[str, ...] | None = None
    findings: tuple[DefinitionSuspicion, ...] = ()
    suggestions: tuple[SuggestedValidator, ...] = ()
    fault: str = ""
    # The canonical definition, held only until the review has decided whether to store it.
    fresh: list[bytes] = field(default_factory=list[bytes], repr=False, compare=False)

    def required_permissions(self, server: tuple[str, ...]) -> tuple[str, ...]:
        """Return the permissions it needs; a tool that declares none needs those of its server."""
        return server if self.permissions is None else self.permissions

    @property
    def suggested_validators(self) -> tuple[str, ...]:
        """The validators that the tool's name and arguments suggest."""
        return validators_of(self.suggestions)

    def canonical_bytes(self) -> bytes:
        """Return the canonical definition; it is computed again, since keeping all takes memory."""
        if self.fresh:
            return self.fresh.pop()
        return (
            b""
            if self.fault
            else canonical_definition(jsonrpc.decode_members(self.definition), self.name)
        )

    def possible_tool_names(self) -> Iterator[str]:
        """Yield words of the description that may name tools: spelt like names, or in quotes."""
        if self.fault:
            return
        said = jsonrpc.decode_text(jsonrpc.decode_members(self.definition).get("description")) or ""
        spelt = dict.fromkeys(_possible_names(said[:MAX_TEXT_LENGTH]))
        yield from [word for word in spelt if word != self.name][:MAX_WORDS]


def examine_definition(definition: bytes, name: str) -> DefinitionAnalysis:
    """Analyze a definition.

    The function raises nothing: an unreadable definition has a `fault` in its analysis.
    """
    if definition == UNLISTED_DEFINITION:
        return DefinitionAnalysis(definition, name)
    if len(definition) > MAX_DEFINITION_BYTES:
        return DefinitionAnalysis(
            definition, name, fault=f"it has more than {MAX_DEFINITION_BYTES} bytes"
        )
    try:
        members = jsonrpc.decode_members(definition)
        written = canonical_definition(members, name)
    except (MalformedMessage, RecursionError) as error:
        return DefinitionAnalysis(
            definition, name, fault=f"it can be read in more than one way: {error}"
        )
    label = parse_label(members)
    needs = (
        None if label is None or label.permissions is None else expand_aliases(label.permissions)
    )
    said: Mapping[str, Any] = msgspec.json.decode(written)
    return DefinitionAnalysis(
        definition,
        name,
        definition_digest(written),
        label,
        parse_hints(members),
        needs,
        _all_findings(name, written, said),
        suggest_validators(name, said),
        fresh=[written],
    )


def has_same_meaning(known: bytes, shown: bytes, name: str) -> bool:
    """Return whether a reader learns the same about a tool from both definitions.

    The second one may leave out the security label and members that no model reads.
    """
    if known == UNLISTED_DEFINITION:
        return False
    try:
        one, other = (
            canonical_definition(jsonrpc.decode_members(each), name) for each in (known, shown)
        )
    except (MalformedMessage, RecursionError):
        return False
    if drop_members(one, *_IGNORED_MEMBERS) == drop_members(other, *_IGNORED_MEMBERS):
        return True
    is_labelled = _SECURITY_MEMBER in jsonrpc.decode_members(other)
    left_out = (*_IGNORED_MEMBERS, _SECURITY_MEMBER)
    return not is_labelled and drop_members(one, *left_out) == drop_members(other, *left_out)


def _all_findings(
    name: str, written: bytes, said: Mapping[str, object]
) -> tuple[DefinitionSuspicion, ...]:
    of_name = name_finding(name)
    found = () if of_name is None else (of_name,)
    is_short = len(written) <= MAX_TEXT_LENGTH
    if is_short and _PLAIN_BYTES_PATTERN.fullmatch(written) and not _ESCAPE_PATTERN.search(written):
        return found
    # `name_finding` already reported what the name hides.
    return (*found, *(each for each in definition_findings(said) if each.location != "/name"))


def _possible_names(said: str) -> Iterator[str]:
    for found in _WORD_PATTERN.finditer(said):
        word = found.group().strip(".-")
        around = {said[found.start() - 1 : found.start()], said[found.end() : found.end() + 1]}
        if _NAME_LIKE_PATTERN.search(word) or around <= _QUOTES:
            yield word


class ReviewState(StrEnum):
    """The review state of a tool's definition."""

    ACCEPTED = "accepted"
    NEW = "new"
    CHANGED = "changed"
    SUSPECT = "suspect"
    UNREADABLE = "unreadable"
    DISABLED = "disabled"
    UNKNOWN = "unknown"


_REFUSAL_BY_STATE: Final[Mapping[ReviewState, str]] = {
    ReviewState.NEW: "no operator has accepted this tool yet",
    ReviewState.CHANGED: "the definition of this tool has changed since it was accepted",
    ReviewState.SUSPECT: "the definition of this tool may deceive its readers",
    ReviewState.UNREADABLE: "the definition of this tool cannot be read in one way only",
    ReviewState.DISABLED: "an operator has switched this tool off",
}
_REMEDY: Final = (
    "an operator can look at it with `comity tools diff {server}` and let it be used with "
    "`comity tools accept {server} {tool}`"
)
_LOCK_REMEDY: Final = (
    "it differs from comity.lock; an operator can look at it with `comity tools diff {server}` and "
    "let it be used with `comity servers update {server}`"
)
LOCK_FILE: Final = "comity.lock"
"""The author of an acceptance that the lock file holds."""


class AcceptedDefinition(NamedTuple):
    """The part of an accepted definition that every call checks."""

    digest: str
    by: str
    at: datetime | None


def state_of(
    seen: DefinitionAnalysis,
    policy: ServerPolicy,
    tool: ToolPolicy,
    findings: Iterable[DefinitionSuspicion],
    accepted: AcceptedDefinition | None,
    is_known: bool,
    *,
    is_outside_lock: bool = False,
) -> ReviewState:
    """Return the review state of a definition under its policy and the accepted definition.

    `is_known` tells whether the accepted definitions of the server are loaded. By default, a
    definition seen for the first time without findings counts as accepted. `is_outside_lock` is
    for a tool that the lock file of its server does not have.
    """
    if tool.disabled:
        return ReviewState.DISABLED
    if seen.fault:
        return ReviewState.UNREADABLE
    is_locked = policy.locked_tools is not None
    is_pinned = is_locked or policy.definitions is not DefinitionPolicy.OFF
    if is_pinned and not is_known:
        return ReviewState.UNKNOWN
    if is_pinned and accepted is not None and seen.digest not in ("", accepted.digest):
        return ReviewState.CHANGED
    suspect = any(findings) and policy.suspicious is not SuspicionPolicy.SHOW
    if suspect and not _is_accepted_by_person(accepted, seen):
        return ReviewState.SUSPECT
    is_new = policy.definitions is DefinitionPolicy.APPROVE and accepted is None
    return ReviewState.NEW if is_new or is_outside_lock else ReviewState.ACCEPTED


def _is_accepted_by_person(accepted: AcceptedDefinition | None, seen: DefinitionAnalysis) -> bool:
    """Return whether a person, and not the gateway, accepted exactly this definition."""
    return accepted is not None and accepted.by != GATEWAY and accepted.digest == seen.digest


def refusal_for(
    state: ReviewState,
    server: str,
    tool: str,
    missing: Mapping[str, PermissionDecision],
    findings: Iterable[DefinitionSuspicion] = (),
    *,
    is_locked: bool = False,
) -> Refusal | None:
    """Return why a tool in this review state cannot be called; None if it can."""
    if state is ReviewState.UNKNOWN:
        reason = "the accepted definitions of this server are not loaded yet"
        return Refusal(POLICY_UNKNOWN, reason)
    if state is not ReviewState.ACCEPTED:
        reason = _REFUSAL_BY_STATE[state]
        if state in (ReviewState.NEW, ReviewState.CHANGED, ReviewState.SUSPECT):
            remedy = _LOCK_REMEDY if is_locked else _REMEDY
            reason = f"{reason}; {remedy.format(server=server, tool=_safe_name(tool))}"
        details: dict[str, object] = {"reason": f"definition_{state}"}
        if state is ReviewState.SUSPECT:
            details["findings"] = sorted({str(each.kind) for each in findings})
        return Refusal(TOOL_DISABLED, reason, details=details)
    if missing:
        return _missing_permissions_refusal(server, missing)
    return None


def _missing_permissions_refusal(server: str, missing: Mapping[str, PermissionDecision]) -> Refusal:
    name, first = next(iter(missing.items()))
    others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    reason = (
        f"server {server!r} needs the permission {_safe_name(name)}{others} for this tool, "
        f"which is {first.decision}; an operator can give it with "
        f"`comity servers permissions approve {server} {_safe_name(name)}`"
    )
    told = {permission: str(each.decision) for permission, each in missing.items()}
    return Refusal(PERMISSION_DENIED, reason, details={"permissions": told})


def tool_description(definition: bytes) -> str | None:
    """Return the description in a definition, cut; None if it has none that can be read."""
    try:
        said = jsonrpc.decode_text(jsonrpc.decode_members(definition).get("description"))
    except MalformedMessage:
        return None
    return None if said is None else said[:MAX_DESCRIPTION]


def _safe_name(name: str) -> str:
    """Return a name that a server chose, made safe for a message of the gateway."""
    return name if name.isascii() and name.isprintable() and len(name) <= 128 else f"{name!a:.128}"


@dataclass(frozen=True, slots=True)
class AcceptedTool:
    """An accepted tool definition: the canonical JSON and its SHA-256."""

    server: str
    tool: str
    digest: str
    definition: bytes
    accepted_by: str = ""
    accepted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RegistrationRecord:
    """A server registered at run time, as opposed to one in the configuration file. (MGP §15.4)"""

    server: str
    entry: Mapping[str, object]
    created_by: str
    created_at: datetime | None = None
    justification: str = ""


class AcceptedToolStore(Protocol):
    async def put(self, *pins: AcceptedTool) -> None: ...
    async def get(self, server: str, tool: str) -> AcceptedTool | None: ...
    async def list_for(self, server: str) -> Sequence[AcceptedTool]: ...

    async def remove(self, server: str, tool: str = "") -> bool:
        """Remove one tool's record, or all of a server if `tool` is empty.

        Returns whether there was any.
        """
        ...


class RegistrationStore(Protocol):
    async def put(self, registration: RegistrationRecord) -> None: ...
    async def get(self, server: str) -> RegistrationRecord | None: ...
    async def all(self) -> Sequence[RegistrationRecord]: ...
    async def remove(self, server: str) -> bool: ...


def checked_definition(found: AcceptedTool) -> AcceptedTool:
    check_name(found.server, "the server of an accepted definition")
    check_name(found.tool, "a pin's tool")
    check_name(found.digest, "the digest of an accepted definition")
    if len(found.definition) > DOCUMENT_BYTES:
        raise refused_value(f"a definition has at most {DOCUMENT_BYTES} bytes")
    return replace(
        found,
        accepted_by=clean_words(found.accepted_by),
        accepted_at=to_optional_utc(found.accepted_at),
    )


def checked_registration(found: RegistrationRecord) -> RegistrationRecord:
    check_name(found.server, "a server's id")
    encode_document(found.entry)
    return replace(
        found,
        created_by=clean_words(found.created_by),
        created_at=to_optional_utc(found.created_at),
        justification=clean_words(found.justification),
    )


def never_reusable_reason(
    risk: Risk, seen: DefinitionAnalysis, needs: Iterable[str], *, is_always_confirmed: bool
) -> str | None:
    """Return why one answer may never cover further calls of a tool; None if it may."""
    label, hints = seen.label, seen.hints
    if is_always_confirmed or (label is not None and label.confirmation):
        return "each of its calls has to be confirmed"
    dangerous = sorted(name for name in needs if permission_risk(name) is Risk.DANGEROUS)
    if dangerous:
        return f"it needs {dangerous[0]:.80}"
    if label is not None and label.reversible is False:
        return "its effect cannot be undone"
    is_mild = hints.is_read_only is True or hints.is_destructive is False
    is_undone = label is not None and label.reversible is True
    if risk is Risk.DANGEROUS and not (is_mild or is_undone):
        # MCP treats a tool as destructive unless its hints say otherwise.
        return "it counts as dangerous, and may destroy something"
    return None
