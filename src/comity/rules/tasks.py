"""Ids of long-running tasks behind the merged endpoint: `server:task`, so a poll finds its server.

A task id is the server's own word and unique only there (MCP §8). Wherever a message holds one, it
is said in public form to clients and in the server's form to the server.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Raw

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

RELATED: Final = "io.modelcontextprotocol/related-task"
EXTENSION: Final = b"io.modelcontextprotocol/tasks"
STATUS: Final = "notifications/tasks/status"
METHODS: Final = frozenset({"tasks/get", "tasks/result", "tasks/update", "tasks/cancel"})


def public_task(server: str, task: str) -> str:
    return f"{server}:{task}"


def own_task(public: str | None) -> tuple[str, str]:
    """The server that a public task id names, and the id that server knows."""
    server, colon, task = (public or "").partition(":")
    if not colon or not server or not task:
        raise MalformedMessage("no such task; use the id that was given out here", INVALID_PARAMS)
    return server, task


def rename(raw: Raw, change: Callable[[str], str]) -> Raw:
    """The same object with each task id in it changed; anything else is left as it is."""
    found = jsonrpc.members(raw)
    changed: dict[str, object] = {}
    name = jsonrpc.text(found.get("taskId"))
    if name is not None:
        changed["taskId"] = change(name)
    if "task" in found and _is_object(found["task"]):
        changed["task"] = rename(found["task"], change)
    if "_meta" in found and _is_object(found["_meta"]):
        meta = jsonrpc.members(found["_meta"])
        if RELATED in meta and _is_object(meta[RELATED]):
            changed["_meta"] = {**meta, RELATED: rename(meta[RELATED], change)}
    return jsonrpc.to_raw({**found, **changed}) if changed else raw


def _is_object(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"
