"""A call that waits for a person, as a task of the gateway's own: its words in both eras. (MCP §8)

2025-11-25 asks for a task in the call, and fetches the result by `tasks/result`; the extension of
2026-07-28 is given a task where it declared that it can be, and finds the result in `tasks/get`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from msgspec import Raw

from comity.rules import tasks
from comity.rules.eras import ENVELOPE, meta_of, said_in, without
from comity.wire import jsonrpc, mcp
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame

OWN: Final = "~"
"""Where a public id of a task names its server: no server is called so."""

LASTS: Final = timedelta(hours=1)
POLL: Final = timedelta(seconds=2)
_NOTHING: Final = Raw(b"{}")


class Status(StrEnum):
    WORKING = "working"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Shown:
    """What is told of a task: its public id, how it stands since when, and why."""

    id: str
    status: Status
    message: str
    created_at: datetime
    changed_at: datetime


def wants_task(frame: Frame, *, modern: bool) -> bool:
    """Whether a client would take a task for the answer of this call."""
    try:
        if not modern:
            return "task" in jsonrpc.params_of(frame)
        return declares(frame)
    except MalformedMessage:
        return False


def declares(frame: Frame) -> bool:
    """Whether a modern client says that it knows tasks. Raises."""
    if frame.params is UNSET or tasks.EXTENSION not in bytes(frame.params):
        return False
    extensions = said_in(frame).capabilities.get("extensions", _NOTHING)
    return tasks.EXTENSION.decode() in jsonrpc.members(extensions)


def apart(frame: Frame) -> Frame:
    """A call as it goes on apart from its client: as none of the server's tasks, and with nobody
    there who could be asked anything amid it."""
    params = jsonrpc.params_of(frame)
    meta = meta_of(params)
    said: dict[str, object] = {**without(params, {"task"})}
    if not ENVELOPE.isdisjoint(meta):
        said["_meta"] = {**meta, mcp.CLIENT_CAPABILITIES: {}}
    return jsonrpc.with_params(frame, jsonrpc.to_raw(said))


def begun(shown: Shown, *, modern: bool) -> dict[str, object]:
    """What a client is given in the result's stead."""
    if modern:
        return {"resultType": "task", **_fields(shown, modern=True)}
    return {"task": _fields(shown, modern=False)}


def got(shown: Shown, answer: Frame | None, *, modern: bool) -> dict[str, object]:
    """The answer to `tasks/get`; in the modern era it holds the end, once there is one."""
    told = _fields(shown, modern=modern)
    if not modern:
        return told
    told = {"resultType": mcp.COMPLETE_RESULT, **told}
    if answer is not None and answer.result is not UNSET:
        told["result"] = answer.result
    elif answer is not None and shown.status is Status.FAILED:
        told["error"] = answer.error
    return told


def status_of(answer: Frame, *, modern: bool) -> Status:
    """How a task ended, by the answer of its call: a tool's own error is a result to the modern."""
    if answer.result is UNSET:
        return Status.FAILED
    failed = bytes(jsonrpc.members(answer.result).get("isError", b"")) == b"true"
    return Status.FAILED if failed and not modern else Status.COMPLETED


def related(answer: Frame, id: str) -> Frame:
    """A result as `tasks/result` gives it: it says of which task it is."""
    if answer.result is UNSET:
        return answer
    found = jsonrpc.members(answer.result)
    meta: Mapping[str, object] = {**meta_of(found), tasks.RELATED: {"taskId": id}}
    return Frame("2.0", id=answer.id, result=jsonrpc.to_raw({**found, "_meta": meta}))


def _fields(shown: Shown, *, modern: bool) -> dict[str, object]:
    lasts, poll = (round(each.total_seconds() * 1000) for each in (LASTS, POLL))
    times = ("ttlMs", "pollIntervalMs") if modern else ("ttl", "pollInterval")
    return {
        "taskId": shown.id,
        "status": shown.status,
        "statusMessage": shown.message,
        "createdAt": shown.created_at.isoformat(),
        "lastUpdatedAt": shown.changed_at.isoformat(),
        times[0]: lasts,
        times[1]: poll,
    }
