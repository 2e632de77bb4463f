"""Long-running tasks: `server:task` as their public id, and tools that run only as a task.

A task id is the server's own word and unique only there (MCP §8). Wherever a message holds one, it
is said in public form to clients and in the server's form to the server.
"""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from msgspec import Raw

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame

RELATED: Final = "io.modelcontextprotocol/related-task"
EXTENSION: Final = b"io.modelcontextprotocol/tasks"
STATUS: Final = "notifications/tasks/status"
GET: Final = "tasks/get"
RESULT: Final = "tasks/result"
CANCEL: Final = "tasks/cancel"
METHODS: Final = frozenset({GET, RESULT, "tasks/update", CANCEL})


@dataclass(frozen=True, slots=True, repr=False)
class TaskNames:
    """Public ids of tasks, good for the party they were given to and no other. (attack 7)

    Whoever has no key here, or is nobody, gives plain ones: `server:task`.
    """

    key: bytes = b""

    def public(self, party: str, server: str, task: str) -> str:
        mark = self._mark(party, server, task)
        return f"{server}:{mark}:{task}" if mark else f"{server}:{task}"

    def own(self, party: str, public: str | None) -> tuple[str, str]:
        """The server that a public id names, and the id that server knows; raises."""
        server, colon, task = (public or "").partition(":")
        if colon and self.key and party:
            mark, colon, task = task.partition(":")
            said = mark.encode(errors="surrogatepass")
            if not hmac.compare_digest(said, self._mark(party, server, task).encode()):
                colon = ""
        if not colon or not server or not task:
            raise MalformedMessage(NO_SUCH_TASK, INVALID_PARAMS)
        return server, task

    def _mark(self, party: str, server: str, task: str) -> str:
        if not self.key or not party:
            return ""
        said = f"{party}\0{server}\0{task}".encode(errors="surrogatepass")
        return hmac.digest(self.key, said, hashlib.sha256).hex()[:_MARK_LENGTH]


NO_SUCH_TASK: Final = "no such task; use the id that was given out here"
PLAIN_NAMES: Final = TaskNames()
_MARK_LENGTH: Final = 16


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


@lru_cache(1024)
def must_be_task(definition: bytes) -> bool:
    """Whether a tool of the handshake era runs as a task or not at all."""
    if b"taskSupport" not in definition:
        return False
    try:
        execution = jsonrpc.members(jsonrpc.members(definition).get("execution", b"{}"))
        return jsonrpc.text(execution.get("taskSupport")) == "required"
    except MalformedMessage:
        return False


def as_task(frame: Frame) -> Frame:
    """The same call, to be run as a task."""
    params: dict[str, object] = {**jsonrpc.params_of(frame), "task": {}}
    return jsonrpc.with_params(frame, jsonrpc.to_raw(params))


def task_in(answer: Frame) -> str | None:
    """The task that a server began instead of giving the result."""
    if answer.result is UNSET:
        return None
    try:
        task = jsonrpc.members(answer.result).get("task")
        return None if task is None else jsonrpc.text(jsonrpc.members(task).get("taskId"))
    except MalformedMessage:
        return None


def _is_object(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"
