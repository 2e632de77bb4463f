"""Registration messages, and the allowlist of what may be registered."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Raw, Struct

from comity.catalog.definitions import name_skeleton
from comity.errors import INVALID_PARAMS, INVALID_TOOL_ARGS, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor, PrincipalKind
from comity.policy.grants import ANY, CREDENTIAL_SOURCE, Decision, Effect, is_pattern_match
from comity.toolkit.text import count_noun, word_set
from comity.validation.network import host_problem

REGISTER_METHOD: Final = "mgp/discovery/register"
DEREGISTER_METHOD: Final = "mgp/discovery/deregister"

MAX_ARGUMENTS: Final = 64
MAX_CODE_BYTES: Final = 32 * 1024
MAX_ARGUMENT_BYTES: Final = 16 * 1024
"""The limit in bytes for all words of a command line together."""

type _Word = Annotated[str, Meta(max_length=2048)]
type _Name = Annotated[str, Meta(min_length=1, max_length=200)]
type _Remark = Annotated[str, Meta(max_length=2000)]

_META_MEMBER: Final = "_meta"


class _MgpTable(Struct, forbid_unknown_fields=True):
    """The fields that the table `mgp` of a registered server may have. None of them is trusted."""

    extensions: Annotated[list[_Name], Meta(max_length=32)] = []
    permissions_required: Annotated[list[_Name], Meta(max_length=64)] = []
    trust_level: Annotated[str, Meta(max_length=64)] = ""
    restart_policy: Literal["never", "on_failure", "always"] = "on_failure"


class _RegisterServerParams(Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=64)]
    transport: Literal["stdio", "http"] = "stdio"
    command: Annotated[str, Meta(max_length=512)] = ""
    args: Annotated[list[_Word], Meta(max_length=MAX_ARGUMENTS)] = []
    url: Annotated[str, Meta(max_length=2048)] = ""
    code: Annotated[str, Meta(max_length=MAX_CODE_BYTES)] = ""
    mgp: _MgpTable | None = None
    created_by: Annotated[str, Meta(max_length=200)] | None = None
    justification: _Remark = ""


class _CodeArguments(Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=64)]
    code: Annotated[str, Meta(min_length=1, max_length=MAX_CODE_BYTES)]
    justification: _Remark = ""


class _DeregisterServerParams(Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=64)]
    reason: _Remark = ""


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """A server to be registered: a command to run, code to run, or a URL to call."""

    id: str
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""
    code: str = ""
    extensions: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    restart_policy: Literal["never", "on_failure", "always"] = "on_failure"
    claimed_by: str = ""
    claimed_trust: str = ""
    justification: str = ""

    @property
    def command_line(self) -> tuple[str, ...]:
        return (self.command, *self.args)

    @property
    def has_code(self) -> bool:
        """Whether the server is made from code in the message. A script counts as a command."""
        return bool(self.code) and not self.command

    @property
    def transport(self) -> Literal["stdio", "http"]:
        return "http" if self.url else "stdio"


@dataclass(frozen=True, slots=True)
class DeregistrationRequest:
    """The server to deregister, and the reason."""

    id: str
    reason: str


def decode_registration(params: Mapping[str, Raw]) -> RegistrationRequest:
    """Return the server of a registration request. Raises MalformedMessage."""
    said = _decode_params(params, _RegisterServerParams)
    ways = [name for name in ("command", "url", "code") if getattr(said, name)]
    if len(ways) != 1 or (said.transport == "http") != (ways == ["url"]):
        raise MalformedMessage(
            "give one of: a command (stdio), code (stdio), or a url (http)", INVALID_PARAMS
        )
    if said.args and not said.command:
        raise MalformedMessage("args belong to a command", INVALID_PARAMS)
    if len(said.command) + sum(map(len, said.args)) > MAX_ARGUMENT_BYTES:
        raise MalformedMessage("its command line is too long", INVALID_PARAMS)
    declared = said.mgp or _MgpTable()
    return RegistrationRequest(
        said.id,
        said.command,
        tuple(said.args),
        said.url,
        said.code,
        tuple(declared.extensions),
        tuple(declared.permissions_required),
        declared.restart_policy,
        said.created_by or "",
        declared.trust_level,
        said.justification,
    )


def decode_code_registration(arguments: Mapping[str, Raw]) -> RegistrationRequest:
    """Return the server that the arguments of `create_tool` describe. Raises MalformedMessage."""
    try:
        found = msgspec.convert(
            {name: jsonrpc.decode_value(raw) for name, raw in arguments.items()}, _CodeArguments
        )
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"{error}"[:300], INVALID_TOOL_ARGS) from None
    return RegistrationRequest(found.id, code=found.code, justification=found.justification)


def decode_deregistration(params: Mapping[str, Raw]) -> DeregistrationRequest:
    """Return the server of a deregistration request. Raises MalformedMessage."""
    said = _decode_params(params, _DeregisterServerParams)
    return DeregistrationRequest(said.id, said.reason)


def to_entry(registration: RegistrationRequest) -> dict[str, object]:
    """Return a registration in the form in which the store keeps it."""
    return {name: value for name in _STORED_FIELDS if (value := getattr(registration, name))}


def request_of_entry(server: str, entry: Mapping[str, object]) -> RegistrationRequest:
    """Return a registration from its stored form. Raises MalformedMessage."""
    try:
        found = msgspec.convert({**entry, "id": server}, RegistrationRequest)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"no registration: {error}"[:300], INVALID_PARAMS) from None
    return found


_STORED_FIELDS: Final = (
    *("command", "args", "url", "code", "extensions", "permissions", "restart_policy"),
    "justification",
)


def _decode_params[T](params: Mapping[str, Raw], kind: type[T]) -> T:
    found: dict[str, Any] = {
        name: jsonrpc.decode_value(raw) for name, raw in params.items() if name != _META_MEMBER
    }
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"{error}"[:300], INVALID_PARAMS) from None


REST_PATTERN: Final = "..."
"""As the last word of a pattern, it allows any further words."""

_SHELLS: Final = word_set(
    "sh bash dash ash zsh fish ksh csh tcsh rbash busybox toybox cmd powershell pwsh",
    "env xargs sudo doas su runuser nohup setsid timeout nice ionice stdbuf script ssh eval exec",
    "unshare nsenter chroot setpriv strace ltrace gdb find watch parallel time command",
)
_INTERPRETERS: Final = word_set("node nodejs deno bun ruby perl php lua luajit java tclsh awk gawk")
_PYTHON_PATTERN: Final = re.compile(r"(?:python|pypy)[0-9.]*[a-z]?")
_ID_PATTERN: Final = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_SCRIPT_PATTERN: Final = re.compile(r"[A-Za-z0-9_./-]+\.py")
_PLAIN_CHARACTERS: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)
_CONTROL_PATTERN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")


class CommandMatch(StrEnum):
    """How a command matches the patterns of the operator."""

    NAMED = "named"
    """The operator named the program."""
    SCRIPT = "script"
    """The command runs a script file, which the operator did not write."""


def pattern_problem(pattern: str) -> str | None:
    """Return why an operator's command pattern is invalid, or None if it is valid."""
    first, *others = pattern.split() or [""]
    name = _program_name(first)
    if not first or ANY in first or first == REST_PATTERN or first.startswith("-"):
        return "must begin with the name of a program"
    if name in _SHELLS:
        return f"must not begin with {name}, which runs any command"
    if REST_PATTERN in others[:-1]:
        return f"may hold {REST_PATTERN} only as its last word"
    is_open = any(ANY in word or word == REST_PATTERN for word in others)
    if is_open and (name in _INTERPRETERS or _PYTHON_PATTERN.fullmatch(name)):
        return f"must contain every argument of {name}; for Python, its name alone"
    return None


def match_command(line: tuple[str, ...], patterns: Iterable[str]) -> CommandMatch | None:
    """Return how a command line matches the operator's patterns, or None if it does not."""
    if any(_CONTROL_PATTERN.search(word) for word in line):
        return None
    for pattern in patterns:
        wanted = tuple(pattern.split())
        if wanted == line[:1] and _PYTHON_PATTERN.fullmatch(_program_name(line[0])):
            if len(line) == 2 and is_script(line[1]):
                return CommandMatch.SCRIPT
        elif _matches_pattern(wanted, line):
            return CommandMatch.NAMED
    return None


def _matches_pattern(pattern: tuple[str, ...], line: tuple[str, ...]) -> bool:
    if pattern[-1:] == (REST_PATTERN,):
        pattern, line = pattern[:-1], line[: len(pattern) - 1]
    return len(pattern) == len(line) and all(map(_matches_word, pattern, line))


def _matches_word(pattern: str, word: str) -> bool:
    if ANY not in pattern:
        return pattern == word
    is_option = word.startswith("-") and not pattern.startswith("-")
    # Only characters of a package name are allowed: no path, no address and no `name@url`.
    is_plain = _PLAIN_CHARACTERS.issuperset(set(word) - set(pattern)) and ".." not in word
    return is_pattern_match(pattern, word) and not is_option and is_plain


def is_script(word: str) -> bool:
    """Whether a word is the relative path of a Python file, and nothing else."""
    plain = _SCRIPT_PATTERN.fullmatch(word) is not None and not word.startswith(("-", "/"))
    return plain and ".." not in word.split("/")


def _program_name(word: str) -> str:
    return word.replace("\\", "/").rpartition("/")[2].lower().removesuffix(".exe")


def id_problem(id: str, namespace: str, others: Iterable[str]) -> str | None:
    """Return why a server cannot have this id, or None. `others` are the names in use."""
    rest = id.removeprefix(f"{namespace}.")
    if rest == id or _ID_PATTERN.fullmatch(id) is None:
        return (
            f"its id must begin with {namespace}. and go on in small letters a-z, digits and "
            "single . _ - between them"
        )
    look = name_skeleton(id)
    if any(name_skeleton(other) == look for other in others):
        return "its id is taken, or looks like one that is"
    return None


def url_problem(url: str, hosts: frozenset[str]) -> tuple[str | None, str]:
    """Return why a URL is refused, or None and the host name that still has to be resolved."""
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


def refusal_reason(
    registration: RegistrationRequest,
    commands: Sequence[str],
    hosts: frozenset[str],
    *,
    takes_code: bool,
) -> str | None:
    """Return what the settings forbid for every actor in this registration, or None."""
    if registration.url:
        return url_problem(registration.url, hosts)[0]
    if not registration.command:
        return None if takes_code else "servers are not made of code here"
    if match_command(registration.command_line, commands) is None:
        return "the operator does not allow this command"
    return None


def limit_problem(
    party: str, owners: Iterable[str], max_servers: int, max_per_principal: int
) -> str | None:
    """Return why this principal cannot register more, or None. `owners` has one per server."""
    held = list(owners)
    if len(held) >= max_servers:
        return f"no more than {count_noun(max_servers, 'server')} may be registered"
    if held.count(party) >= max_per_principal:
        return f"{party} may register no more than {count_noun(max_per_principal, 'server')}"
    return None


def decide_entitlement(actor: Actor, decision: Decision) -> Effect:
    """Return whether an actor may register a server, must request approval, or neither."""
    if actor.kind is PrincipalKind.SERVER or not actor.party:
        return Effect.DENY
    if decision.effect is not Effect.DENY:
        return decision.effect
    is_decided = decision.grant is not None or decision.guardrail is not None
    # The local user may request approval, and decides with its operator token.
    is_beyond = decision.reason == CREDENTIAL_SOURCE and not actor.is_local
    return Effect.DENY if is_decided or is_beyond else Effect.ASK


def summarize_request(registration: RegistrationRequest) -> str:
    """Return a short summary of the registration for the approver."""
    if registration.url:
        return f"calls of its tools go to {registration.url}"
    return (
        "it runs code that is shown here"
        if registration.code
        else f"it runs: {' '.join(registration.command_line)}"
    )


def describe_request(registration: RegistrationRequest) -> dict[str, object]:
    """Return all details that an approver reads before the decision."""
    said: dict[str, object] = {"server": registration.id, "risk": "dangerous", "trust": "sandboxed"}
    said |= {"command": list(registration.command_line)} if registration.command else {}
    said |= {"url": registration.url} if registration.url else {}
    said |= {"code": registration.code} if registration.code else {}
    said |= (
        {"permissions_required": list(registration.permissions)} if registration.permissions else {}
    )
    return said | {"justification": registration.justification}
