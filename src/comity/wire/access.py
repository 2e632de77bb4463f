"""How access is asked after, granted and revoked in MGP's words. (MGP §5.4, D-15)"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.lifecycle import moment

QUERY: Final = "mgp/access/query"
GRANT: Final = "mgp/access/grant"
REVOKE: Final = "mgp/access/revoke"


class EntryType(StrEnum):
    """What an entry is about: a whole server, or one tool of it. (MGP §5.3)"""

    SERVER_GRANT = "server_grant"
    TOOL_GRANT = "tool_grant"


class _Asked(Struct):
    server_id: str
    agent_id: str | None = None
    tool_name: str | None = None


class _Named(Struct):
    entry_type: EntryType
    agent_id: str
    server_id: str
    tool_name: str | None = None


class _Granted(_Named, kw_only=True):
    permission: Effect
    granted_by: str | None = None
    justification: str | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """Whose access to what is asked after; `agent` is None for whoever asks."""

    agent: str | None
    server: str
    tool: str


def question(params: Mapping[str, Raw]) -> Question:
    """Raises MalformedMessage."""
    asked = _read(params, _Asked)
    return Question(asked.agent_id, _one(asked.server_id, "server_id"), asked.tool_name or "")


def granted(params: Mapping[str, Raw]) -> Grant:
    """The entry that is to be; raises MalformedMessage."""
    said = _read(params, _Granted)
    if said.expires_at is not None and said.expires_at.tzinfo is None:
        raise MalformedMessage("expires_at must say its time zone", INVALID_PARAMS)
    return Grant(
        _one(said.agent_id, "agent_id"),
        CALL,
        _target(said),
        said.permission,
        granted_by=said.granted_by or "",
        justification=said.justification or "",
        expires_at=said.expires_at,
    )


def revoked(params: Mapping[str, Raw]) -> tuple[str, str]:
    """The subject and the target of the entry that is to go; raises MalformedMessage."""
    said = _read(params, _Named)
    return _one(said.agent_id, "agent_id"), _target(said)


def shown(effect: Effect, source: str, grant: Grant | None) -> dict[str, object]:
    """The state of access, as a query is answered. (MGP §5.4)"""
    return {
        "permission": effect,
        "source": source,
        "granted_by": None if grant is None else grant.granted_by or None,
        "granted_at": _moment(None if grant is None else grant.granted_at),
        "expires_at": _moment(None if grant is None else grant.expires_at),
    }


def entry_type(target: str) -> EntryType:
    is_whole = target.endswith("*")
    return EntryType.SERVER_GRANT if is_whole else EntryType.TOOL_GRANT


def _moment(at: datetime | None) -> str | None:
    return None if at is None else moment(at.astimezone(UTC))


def _target(said: _Named) -> str:
    server = _one(said.server_id, "server_id")
    if said.entry_type is EntryType.TOOL_GRANT:
        if not said.tool_name:
            raise MalformedMessage("a tool_grant needs its tool_name", INVALID_PARAMS)
        return f"{server}/{_one(said.tool_name, 'tool_name')}"
    if said.tool_name is not None:
        raise MalformedMessage("a server_grant has no tool_name", INVALID_PARAMS)
    return f"{server}/*"


def _one(name: str, member: str) -> str:
    """A name that stands for one alone: patterns are for operators to write."""
    if not name or "*" in name or (member == "server_id" and "/" in name):
        raise MalformedMessage(f"{member} must name one, without * in it", INVALID_PARAMS)
    return name


def _read[T](params: Mapping[str, Raw], kind: type[T]) -> T:
    try:
        return msgspec.convert({name: jsonrpc.value(raw) for name, raw in params.items()}, kind)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"{error}"[:300], INVALID_PARAMS) from None
