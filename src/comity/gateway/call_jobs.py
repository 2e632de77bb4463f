"""Calls of tools as jobs: an operator starts a call, follows its progress and may cancel it.

A job passes the call pipeline with the grants of its principal, as a call of any client does.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final, NotRequired, TypedDict

from msgspec import UNSET, Meta, Raw
from msgspec import field as struct_field

from comity.approvals.client_prompts import LongWaitStream
from comity.approvals.model import ApprovalRequest
from comity.errors import (
    EXHAUSTED,
    INTERNAL_ERROR,
    NOTHING_HERE,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.gateway.all_servers import AllServersEndpoint
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyBody, EmptyQuery, RequestBody, RequestQuery
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.jsonrpc import Frame
from comity.policy.shares import PrincipalShares
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.toolkit.background import BackgroundTasks

MAX_JOBS: Final = 1000
MAX_ACTIVE_PER_PRINCIPAL: Final = 20
MAX_KEPT_PER_PRINCIPAL: Final = 50
KEPT_SECONDS: Final = 600.0
MAX_RESULT_BYTES: Final = 1024 * 1024
MAX_PROGRESS: Final = 50
MAX_PROGRESS_TEXT: Final = 500
MAX_WAIT_SECONDS: Final = 20

_ENVELOPE: Final[Mapping[str, object]] = {
    protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
    # The console answers no question of a server during a call; people do, through approvals.
    protocol.CLIENT_CAPABILITIES: {},
    protocol.CLIENT_INFO: {"name": "comity-console", "version": "1"},
}


class CallJobState(StrEnum):
    """The progress of a job."""

    QUEUED = "queued"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        return self in (CallJobState.DONE, CallJobState.FAILED, CallJobState.CANCELLED)


class CallProgressView(TypedDict):
    """One progress message of the server."""

    at: datetime
    progress: float | None
    total: float | None
    message: str | None


class CallErrorView(TypedDict):
    """Why a call was refused or failed. `data` is what the gateway adds."""

    code: int
    message: str
    data: object


class CallJobView(TypedDict):
    """A job. `version` grows with each change, for a reader that waits for the next one."""

    id: str
    tool: str
    state: CallJobState
    is_over: bool
    version: int
    created_at: datetime
    elapsed_ms: int
    # The approval request for which the call waits, or waited.
    approval: str | None
    trace: str | None
    progress: list[CallProgressView]
    # What the tool answered, as its server wrote it. A failed tool has `isError` in it.
    result: NotRequired[Raw]
    is_tool_error: NotRequired[bool]
    error: NotRequired[CallErrorView]


class CallJobListView(TypedDict):
    """The jobs of the principal at this node, the newest first."""

    calls: list[CallJobView]


class CallJobBody(RequestBody, frozen=True):
    """The tool to call, by its public name, and its arguments."""

    tool: Annotated[str, Meta(min_length=1, max_length=512)]
    arguments: dict[str, Any] = struct_field(default_factory=dict[str, Any])


class CallJobQuery(RequestQuery, frozen=True):
    """Wait up to `wait` seconds until the version of the job is above `after`."""

    after: Annotated[int, Meta(ge=0, le=10**9)] = 0
    wait: Annotated[int, Meta(ge=0, le=10**6)] = 0


@dataclass(slots=True)
class CallJob:
    """One call and what is known of it."""

    id: str
    party: str
    tool: str
    created_at: datetime
    started: float
    state: CallJobState = CallJobState.QUEUED
    version: int = 1
    ended: float | None = None
    approval: str = ""
    call: Call | None = None
    result: Raw | None = None
    is_tool_error: bool = False
    error: CallErrorView | None = None
    progress: deque[CallProgressView] = field(
        default_factory=lambda: deque[CallProgressView](maxlen=MAX_PROGRESS)
    )
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self, state: CallJobState | None = None) -> None:
        """Note a change, and wake the readers."""
        if state is not None and not self.state.is_over:
            self.state = state
            self.ended = time.monotonic() if state.is_over else None
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()

    def view(self) -> CallJobView:
        until = time.monotonic() if self.ended is None else self.ended
        view: CallJobView = {
            "id": self.id,
            "tool": self.tool,
            "state": self.state,
            "is_over": self.state.is_over,
            "version": self.version,
            "created_at": self.created_at,
            "elapsed_ms": round((until - self.started) * 1000),
            "approval": self.approval or None,
            "trace": None if self.call is None else self.call.ensure_trace_id(),
            "progress": list(self.progress),
        }
        if self.result is not None:
            view = {**view, "result": self.result, "is_tool_error": self.is_tool_error}
        return view if self.error is None else {**view, "error": self.error}


class CallJobs:
    """The jobs of this node, each owned by its principal."""

    def __init__(
        self,
        endpoint: AllServersEndpoint,
        make_id: Callable[[], str] = lambda: secrets.token_hex(24),
    ) -> None:
        self._endpoint = endpoint
        self._make_id = make_id
        self._jobs: dict[str, CallJob] = {}
        self._shares = PrincipalShares("calls from the console", "", MAX_ACTIVE_PER_PRINCIPAL)
        self._background_tasks = BackgroundTasks("calls from the console")

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, actor: Actor, tool: str, arguments: Mapping[str, Any]) -> CallJob:
        """Start a call in the name of an actor. Raises Unavailable if too many run."""
        self._drop_old_jobs(actor.party)
        if len(self._jobs) >= MAX_JOBS:
            raise Unavailable("too many calls are kept here; try again later", EXHAUSTED)
        if not self._shares.acquire(actor.party):
            raise self._shares.error()
        job = CallJob(self._make_id(), actor.party, tool, datetime.now(UTC), time.monotonic())
        self._jobs[job.id] = job
        self._background_tasks.start(self._run(job, actor, arguments))
        return job

    def get(self, actor: Actor, id: str) -> CallJob:
        """Return a job of the actor. Raises MalformedMessage."""
        job = self._jobs.get(id)
        if job is None or job.party != actor.party:
            raise MalformedMessage("there is no such call, or it ended long ago", NOTHING_HERE)
        return job

    def list_jobs(self, actor: Actor) -> list[CallJob]:
        return [job for job in reversed(self._jobs.values()) if job.party == actor.party]

    def cancel(self, job: CallJob) -> None:
        """Cancel a call that is not over. Its server gets a cancellation."""
        if job.state.is_over:
            return
        job.change(CallJobState.CANCELLED)
        if job.call is not None:
            job.call.withdraw(jsonrpc.to_raw("cancelled by the operator"))

    def stop(self) -> None:
        self._background_tasks.cancel()

    def _drop_old_jobs(self, party: str) -> None:
        oldest = time.monotonic() - KEPT_SECONDS
        over = [job for job in self._jobs.values() if job.ended is not None]
        own = [job for job in over if job.party == party]
        dropped = [job for job in over if job.ended is not None and job.ended < oldest]
        dropped += own[: max(0, len(own) - MAX_KEPT_PER_PRINCIPAL + 1)]
        for job in dropped:
            self._jobs.pop(job.id, None)

    async def _run(self, job: CallJob, actor: Actor, arguments: Mapping[str, Any]) -> None:
        stream = LongWaitStream()
        stream.actor = actor
        stream.on_held = lambda request: self._on_held(job, request)
        meta = {**_ENVELOPE, "progressToken": job.id}
        params = {"name": job.tool, "arguments": arguments, "_meta": meta}
        frame = jsonrpc.make_request(1, protocol.CALL_TOOL, params)
        try:
            if not job.state.is_over:
                job.change(CallJobState.RUNNING)
                job.call = await self._endpoint.handle_modern_request(frame, stream, ())
                await self._follow(job, stream)
        except (Unavailable, MalformedMessage) as error:
            _fail(job, error.fault.code, str(error))
        except Exception:
            _fail(job, INTERNAL_ERROR.code, "an internal error ended the call")
            raise
        finally:
            self._shares.release(job.party)

    async def _follow(self, job: CallJob, stream: ClientStream) -> None:
        """Read what the call says until its answer."""
        while not stream.is_final or stream.frames:
            await stream.wait()
            stream.is_nudged = stream.is_suspended = False
            for data in stream.take():
                _read_message(job, data)
            is_held = job.call is not None and job.call.held_since is not None
            if job.state is CallJobState.WAITING_FOR_APPROVAL and not is_held:
                job.change(CallJobState.RUNNING)
        if not job.state.is_over:
            _fail(job, UPSTREAM_FAILED.code, "the call ended without an answer")

    def _on_held(self, job: CallJob, request: ApprovalRequest) -> None:
        job.approval = request.id
        job.change(CallJobState.WAITING_FOR_APPROVAL)


def _fail(job: CallJob, code: int, message: str, data: object = None) -> None:
    if not job.state.is_over:
        job.error = {"code": code, "message": message, "data": data}
        job.change(CallJobState.FAILED)


def _read_message(job: CallJob, data: bytes) -> None:
    frame = jsonrpc.decode_frame(data)
    if frame.method == protocol.PROGRESS:
        job.progress.append(_progress_view(frame))
        job.change()
    elif frame.method is UNSET and not job.state.is_over:
        _read_answer(job, frame, len(data))


def _read_answer(job: CallJob, frame: Frame, size: int) -> None:
    if (error := jsonrpc.error_of(frame)) is not None:
        _fail(job, error.code, error.message, error.data)
    elif frame.result is UNSET or size > MAX_RESULT_BYTES:
        _fail(job, UPSTREAM_FAILED.code, f"the result is larger than {MAX_RESULT_BYTES} bytes")
    else:
        job.result = frame.result
        members = jsonrpc.decode_members(frame.result)
        job.is_tool_error = bytes(members.get("isError", b"")) == b"true"
        job.change(CallJobState.DONE)


def _progress_view(frame: Frame) -> CallProgressView:
    params = frame.parameters
    message = jsonrpc.decode_text(params.get("message"))
    return {
        "at": datetime.now(UTC),
        "progress": _number_in(params.get("progress")),
        "total": _number_in(params.get("total")),
        "message": None if message is None else message[:MAX_PROGRESS_TEXT],
    }


def _number_in(raw: Raw | None) -> float | None:
    value = None if raw is None else jsonrpc.decode_value(raw)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


class CallJobsApi:
    """The routes with which a principal starts, follows and cancels its own calls."""

    def __init__(self, jobs: CallJobs) -> None:
        self._jobs = jobs

    @property
    def routes(self) -> ApiRoutes:
        own, one = Permission.OWN_RECORDS, "/api/calls/{id}"
        return (
            ApiRoute("GET", "/api/calls", own, self._list_calls, EmptyQuery),
            ApiRoute("POST", "/api/calls", own, self._start_call, CallJobBody),
            ApiRoute("GET", one, own, self._follow_call, CallJobQuery),
            ApiRoute("POST", f"{one}/cancel", own, self._cancel_call, EmptyBody),
        )

    async def _list_calls(self, request: ApiRequest[EmptyQuery]) -> CallJobListView:
        """Return the calls that the principal started here."""
        return {"calls": [job.view() for job in self._jobs.list_jobs(request.actor)]}

    async def _start_call(self, request: ApiRequest[CallJobBody]) -> CallJobView:
        """Start a call with the grants of the principal."""
        said = request.input
        return self._jobs.start(request.actor, said.tool, said.arguments).view()

    async def _follow_call(self, request: ApiRequest[CallJobQuery]) -> CallJobView:
        """Return a call. Wait a short time for a change after a version."""
        job, wanted = self._jobs.get(request.actor, request.path["id"]), request.input
        until = time.monotonic() + min(wanted.wait, MAX_WAIT_SECONDS)
        while job.version <= wanted.after and not job.state.is_over:
            left = until - time.monotonic()
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    await job.changed.wait()
            except TimeoutError:
                break
        return job.view()

    async def _cancel_call(self, request: ApiRequest[EmptyBody]) -> CallJobView:
        """Cancel a call that is not over."""
        job = self._jobs.get(request.actor, request.path["id"])
        self._jobs.cancel(job)
        return job.view()
