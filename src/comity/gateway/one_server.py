"""The endpoint `/servers/{id}/mcp`, in front of one server."""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from comity.catalog.access import Sees
from comity.catalog.catalog import NAME_MEMBER_BY_KIND
from comity.catalog.listing import KIND_OF_LIST
from comity.errors import INVALID_PARAMS, METHOD_NOT_FOUND, MalformedMessage, Unavailable
from comity.gateway.era_bridge import EraBridge
from comity.gateway.method_access import (
    Access,
    notification_access,
    request_access,
    require_method,
)
from comity.gateway.pipeline import CallGate, CallPlan, Outcome, may_be_sent
from comity.gateway.retries import RetryActions, RetryService
from comity.gateway.subscriptions import ListSubscriptions, narrow_listen_request
from comity.mcp import eras, jsonrpc, mcpl, protocol
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.entries import EntryKind
from comity.mcp.eras import detach_request, initialize_result
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import MgpExtension, strip_mgp
from comity.mcp.protocol import Era, encode_header_value
from comity.servers.connection_users import ConnectionUsers
from comity.servers.connections import is_live_host
from comity.servers.supervisor import UpstreamServer
from comity.sessions.calls import ActiveCalls, Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from comity.sessions.upstream import UpstreamConnection
from comity.telemetry.tracing import Headers

log = logging.getLogger(__name__)

CONNECTION_METHODS: Final = frozenset(
    {
        protocol.INITIALIZE,
        protocol.PING,
        protocol.SET_LEVEL,
        protocol.SUBSCRIBE,
        protocol.UNSUBSCRIBE,
    }
)
"""Methods that would change a shared connection for its other users if forwarded unchanged."""

URI_METHODS: Final = frozenset({protocol.READ_RESOURCE, protocol.SUBSCRIBE, protocol.UNSUBSCRIBE})

_list_of_objects = msgspec.json.Decoder(list[dict[str, Raw]])


class McpEndpoint(Protocol):
    """The methods by which transports pass a client's messages to an endpoint, in both versions.

    The `start` methods return a coroutine only if something must be waited for.
    """

    async def handle_request(
        self, session: Session, frame: Frame, client_stream: ClientStream
    ) -> Call: ...
    def start_request(
        self, session: Session, frame: Frame, client_stream: ClientStream
    ) -> Call | Coroutine[Any, Any, Call]: ...
    def handle_message(
        self, session: Session, frame: Frame, actor: Actor = ANONYMOUS
    ) -> Awaitable[None] | None:
        """Handle a message that is not a request. The result is what remains to be awaited."""
        ...

    async def handle_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call: ...
    def start_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call | Coroutine[Any, Any, Call]: ...
    def is_visible_to(self, actor: Actor) -> bool: ...


class ServerEndpoint:
    """The endpoint of one server."""

    def __init__(
        self,
        server: UpstreamServer,
        call_gate: CallGate,
        active_calls: ActiveCalls,
        bridge: EraBridge,
        subscriptions: ListSubscriptions,
        tasks: eras.TaskIds,
    ) -> None:
        self._server = server
        self._tasks = tasks
        self._call_gate = call_gate
        self._active_calls = active_calls
        self._counters = active_calls.metrics.at(server.name)
        self._bridge = bridge
        self._subscriptions = subscriptions

    def replace_server(self, server: UpstreamServer) -> None:
        """Send later requests of the same clients to the server that replaced this one."""
        self._server = server

    async def handle_request(
        self, session: Session, frame: Frame, client_stream: ClientStream
    ) -> Call:
        """Start a request. Its answer or its error arrives in the client stream `client_stream`."""
        started = self.start_request(session, frame, client_stream)
        return started if isinstance(started, Call) else await started

    def start_request(
        self, session: Session, frame: Frame, client_stream: ClientStream
    ) -> Call | Coroutine[Any, Any, Call]:
        """Start a request. The result is a coroutine only if something must be waited for."""
        call = self._active_calls.begin(frame, client_stream, session, self._counters)
        if call.method == protocol.CALL_TOOL:
            return self._start_tool_call(call, frame, session)
        return self._handle_other_request(session, call, frame)

    async def _handle_other_request(self, session: Session, call: Call, frame: Frame) -> Call:
        if await self._call_gate.is_over_limit(call):
            return call
        try:
            checked = self._check(call, frame, session)
            if checked is None:
                return call
            frame = checked
            self._filter_list_result(call)
            connection = self._open_connection(session, call.method)
            if connection is not None:
                connection.send_call(call, frame)
            else:
                await self._connect_and_send(session, call, frame)
        except (Unavailable, MalformedMessage) as error:
            call.fail(error)
        return call

    def handle_message(
        self, session: Session, frame: Frame, actor: Actor = ANONYMOUS
    ) -> Awaitable[None] | None:
        return self._call_gate.pass_message(
            session, frame, actor, lambda notice: self._send_notification(session, notice, actor)
        )

    def _send_notification(self, session: Session, notice: Frame, actor: Actor) -> None:
        """Send a client's notification to the server, if the client may send it."""
        name, method = self._server.name, str(notice.method)
        access = notification_access(method)
        if access is Access.CONNECTION:
            own = session.own_connections.get(name)
            if own is not None:
                own.send_message(notice)
                if method == protocol.INITIALIZED:
                    own.on_initialized()
            elif name in session.shared_connections and method != protocol.INITIALIZED:
                # A shared connection was initialized once, when it was opened.
                session.shared_connections[name].send_message(notice)
            return
        connection = self._private_connection(session, access)
        if connection is not None and self._call_gate.may_notify(actor, method, name):
            connection.send_message(notice)
        else:
            log.debug("server %r: a client may not send %.80s", name, method)

    def _private_connection(self, session: Session, access: Access) -> UpstreamConnection | None:
        """Return the connection for methods that concern more than one call, or None.

        On a connection that principals share, a client would speak for all of them. Where the
        gateway is the MCPL host, it would speak for the gateway.
        """
        connection = self._server.connections.private_connection_of(session)
        if connection is None or access is Access.REFUSED:
            return None
        if access is Access.HOST and (
            connection.live_handler is not None or not is_live_host(session.initialize_params)
        ):
            return None
        return connection

    async def handle_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call:
        started = self.start_modern_request(frame, client_stream, headers)
        return started if isinstance(started, Call) else await started

    def start_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call | Coroutine[Any, Any, Call]:
        """Start a request. The result is a coroutine only if something must be waited for."""
        call = self._active_calls.begin(frame, client_stream, None, self._counters)
        if call.method == protocol.CALL_TOOL:
            return self._start_tool_call(call, frame, headers)
        return self._handle_other_modern_request(call, frame, headers)

    async def _handle_other_modern_request(
        self, call: Call, frame: Frame, headers: Headers
    ) -> Call:
        if await self._call_gate.is_over_limit(call):
            return call
        try:
            checked = self._check(call, frame, None)
            if checked is None:
                return call
            frame = checked
            self._filter_list_result(call)
            if self._server.connections.own_modern_connection is None:
                await self._send_to_legacy(call, frame, headers)
            else:
                if call.method == protocol.LISTEN:
                    frame = narrow_listen_request(
                        call,
                        frame,
                        self._call_gate.uri_filter(call.client_stream.actor, self._server.name),
                    )
                self._server.connections.modern_connection(call.client_stream.actor).send_call(
                    call, frame, headers
                )
        except (Unavailable, MalformedMessage) as error:
            call.fail(error)
        return call

    async def _start_counted_call(
        self, refused: Awaitable[bool], call: Call, frame: Frame, context: Session | Headers
    ) -> Call:
        """Start a tool call after the store has counted the request of its key."""
        if not await refused:
            started = self._start_tool_call(call, frame, context, is_counted=True)
            return started if isinstance(started, Call) else await started
        return call

    def _start_tool_call(
        self, call: Call, frame: Frame, context: Session | Headers, *, is_counted: bool = False
    ) -> Call | Coroutine[Any, Any, Call]:
        """Check a tool call and send it, at once if no check and no connection must wait."""
        gate, tool, actor = self._call_gate, frame.tool, call.client_stream.actor
        if not is_counted and (
            call.exceeded_shares is not None
            or actor.requests_per_minute is not None
            or actor.requests_per_hour is not None
        ):
            refused = gate.refuse_over_limit(call)
            if not isinstance(refused, bool):
                return self._start_counted_call(refused, call, frame, context)
            if refused:
                return call
        try:
            if call.client is None and tool is None:
                frame = gate.pipeline.strip_gateway_parts(call, frame)
            name = tool_name_in(frame) if tool is None else tool.name
            plan = gate.plan_for(call, self._server.name, name)
            outcome = gate.pipeline.run(call, plan, frame)
            if outcome is not None:
                return self._apply_outcome(outcome, call, plan, frame, context)
            if call.sign_in is not None:
                call.sign_in.go_on = lambda: self._send_checked(call, plan, frame, context)
            if gate.retries.is_enabled:
                self._register_retries(gate.retries, call, plan, frame, context)
            waiting = self._forward(call, frame, context)
            if waiting is not None:
                return await_sent(call, waiting)
        except (Unavailable, MalformedMessage) as error:
            call.fail(error)
        return call

    def _apply_outcome(
        self,
        outcome: Outcome | Awaitable[Outcome],
        call: Call,
        plan: CallPlan,
        frame: Frame,
        context: Session | Headers,
    ) -> Call | Coroutine[Any, Any, Call]:
        """Refuse or hold a call, or continue it once a check that waits has ended."""

        async def finish(waiting: Awaitable[Outcome]) -> None:
            if may_be_sent(call, await waiting, go_on):
                await go_on()

        async def go_on() -> None:
            await self._send_checked(call, plan, frame, context)

        if isinstance(outcome, Awaitable):
            return await_sent(call, finish(outcome))
        may_be_sent(call, outcome, go_on)
        return call

    async def _send_checked(
        self, call: Call, plan: CallPlan, frame: Frame, context: Session | Headers
    ) -> None:
        """Send a call that waited, for a check or for a person."""
        if self._call_gate.retries.is_enabled:
            self._register_retries(self._call_gate.retries, call, plan, frame, context)
        await self._send(call, frame, context)

    def _register_retries(
        self,
        retries: RetryService,
        call: Call,
        plan: CallPlan,
        frame: Frame,
        context: Session | Headers,
    ) -> None:
        """Register the call for retries, if the operator allows them for its tool."""

        async def instead(other: Call, asked: Frame) -> None:
            plan = self._call_gate.plan_for(other, self._server.name, tool_name_in(asked))
            found = self._call_gate.pipeline.run(other, plan, asked)
            outcome = await found if isinstance(found, Awaitable) else found
            if may_be_sent(other, outcome, lambda: self._send(other, asked, context)):
                await self._send(other, asked, context)

        means = RetryActions(
            lambda: self._call_gate.pipeline.may_repeat(call, plan, frame),
            lambda: self._send(call, frame, context),
            instead,
            is_for_all_servers=False,
        )
        retries.watch_call(call, plan.entry, frame, means)

    async def _send(self, call: Call, frame: Frame, context: Session | Headers) -> None:
        """Send a call that a person approved, or a retry, which may be of another tool."""
        frame = detach_request(frame) if call.is_detached else frame
        if not isinstance(context, Session) and context:
            # At stdio there are no headers. At HTTP they repeat the name of the tool.
            context = with_name(context, tool_name_in(frame))
        await finish_sending(self._forward(call, frame, context))

    def _forward(
        self, call: Call, frame: Frame, context: Session | Headers
    ) -> Coroutine[Any, Any, None] | None:
        """Send a tool call at once if its connection is open. Otherwise return what opens it."""
        if isinstance(context, Session):
            if frame.tool is None and "task" in frame.parameters:
                self._publish_task_ids(call, frame)
            connection = self._open_connection(context, call.method)
            if connection is None:
                return self._connect_and_send(context, call, frame)
            connection.send_call(call, frame)
            return None
        if self._server.connections.own_modern_connection is None:
            return self._send_to_legacy(call, frame, context)
        if frame.params is not UNSET and eras.EXTENSION in bytes(frame.params):
            self._publish_task_ids(call, frame)
        self._server.connections.modern_connection(call.client_stream.actor).send_call(
            call, frame, context
        )
        return None

    def _publish_task_ids(self, call: Call, frame: Frame) -> None:
        if not call.is_remote:
            # The node of the client does it for its own principals.
            publish_task_ids(call, self._server.name, tool_name_in(frame) or "", self._tasks)

    def is_visible_to(self, actor: Actor) -> bool:
        return self._call_gate.may_know_server(actor, self._server.name)

    def headers_for(self, frame: Frame) -> Headers:
        """Return the headers of a modern request from a client whose transport has no headers."""
        return self._bridge.headers_for(self._server.connections, frame)

    def initialize_result(self, version: str | None) -> Mapping[str, object]:
        """Return the server's initialize result for a client that has no connection to it.

        Raises Unavailable while the server is not available.
        """
        self._server.require_usable()
        reached = self._server.connections
        return initialize_result(reached.initialize_result or reached.discover_result, version)

    def _check(self, call: Call, frame: Frame, session: Session | None) -> Frame | None:
        """Check access for a request that calls no tool.

        Returns the request for the server, or None if the gateway has answered it. Raises
        MalformedMessage for refusals.
        """
        server, method = self._server.name, call.method
        access = request_access(method)
        here = access.at_server
        if call.is_remote:
            # The node of the client has checked the request, or the gateway there made it.
            here = here if here is Access.GATEWAY else Access.CONNECTION
        else:
            version = Era.MODERN if session is None else Era.HANDSHAKE
            require_method(access, here, version, method)
        if here is Access.ENTRY:
            self._require_entry(call, frame)
        elif here is Access.TASK:
            if self._call_gate.pipeline.answers_task(call, frame, self._require_tool):
                return None
            return task_request(call, frame, self._tasks, self._require_tool)[-1]
        elif here is Access.GATEWAY:
            self._cancel(call, frame)
            return None
        elif here not in (Access.FILTERED, Access.CONNECTION):
            self._call_gate.require_server(call, server)
            if here is Access.HOST and (
                session is None or self._private_connection(session, here) is None
            ):
                raise MalformedMessage(
                    f"only the host of a server sends {method:.80}", METHOD_NOT_FOUND
                )
        return frame

    def _require_tool(self, call: Call, server: str, tool: str) -> None:
        """Check the grant on the tool of a task of this server. Raises MalformedMessage."""
        if server != self._server.name:
            raise MalformedMessage(eras.UNKNOWN_TASK_MESSAGE, INVALID_PARAMS)
        self._call_gate.require_tool(call, server, tool)

    def _require_entry(self, call: Call, frame: Frame) -> None:
        """Check the grant on the prompt, resource or template that a request names.

        Raises MalformedMessage.
        """
        if call.method == protocol.GET_PROMPT:
            kind, named = EntryKind.PROMPT, jsonrpc.decode_text(frame.parameters.get("name"))
        elif call.method in URI_METHODS:
            kind, named = EntryKind.RESOURCE, jsonrpc.decode_text(frame.parameters.get("uri"))
        else:
            kind, named = _reference(frame.parameters)
        self._call_gate.require_entry(call, kind, self._server.name, named)

    def _cancel(self, call: Call, frame: Frame) -> None:
        """Cancel a call of this client.

        The server never saw the client's request ids. (MGP §12.7)
        """
        streaming, terms = self._server.connections.activity.stream_relay, call.terms()
        if streaming is None or terms is None or MgpExtension.STREAMING not in terms.extensions:
            raise MalformedMessage(f"there is no {call.method} here", METHOD_NOT_FOUND)
        answer = streaming.cancel(call.client, call, frame)
        if call.client is None:
            answer["resultType"] = protocol.COMPLETE_RESULT
        call.deliver_answer(jsonrpc.make_result(call.client_request_id, answer))

    async def _send_to_legacy(self, call: Call, frame: Frame, headers: Headers) -> None:
        """Send a modern client's request to a legacy server."""
        if call.method == protocol.DISCOVER:
            await self._server.wait_for_first_start()
        shakes_hands = Era.HANDSHAKE in self._server.connections.eras
        if not shakes_hands or eras.input_responses_in(frame)[1] is None:
            # A client that returns for a parked call needs no running server to get the outcome.
            self._server.require_usable()
        if self._server.connections.own_modern_connection is not None:
            self._server.connections.modern_connection(call.client_stream.actor).send_call(
                call, frame, headers
            )
        elif call.method == protocol.DISCOVER:
            found = eras.discover_result(self._server.connections.initialize_result)
            call.deliver_answer(jsonrpc.make_result(call.client_request_id, found))
        elif call.method == protocol.LISTEN:
            await self._subscriptions.listen(call, frame, self._server.name)
        else:
            await self._bridge.send_to_legacy(self._server.connections, call, frame, headers)

    def _open_connection(self, session: Session, method: str) -> UpstreamConnection | None:
        """Return the open connection on which this request can be forwarded unchanged, or None."""
        connection = session.own_connections.get(self._server.name)
        if connection is None and method not in CONNECTION_METHODS:
            connection = session.shared_connections.get(self._server.name)
        return (
            connection
            if connection is not None and session.is_initialized and connection.is_open
            else None
        )

    async def _connect_and_send(self, session: Session, call: Call, frame: Frame) -> None:
        """Send the handshake, or a request whose connection is shared or was lost."""
        greets = call.method == protocol.INITIALIZE
        if greets:
            await self._server.wait_for_first_start()
        self._server.require_usable()
        if greets:
            session.store_client_info(frame.parameters)
            session.may_read = self._call_gate.uri_filter(
                call.client_stream.actor, self._server.name
            )
        if Era.HANDSHAKE not in self._server.connections.eras:
            await self._send_to_modern(session, call, frame)
            return
        connection, sharers = await self._server.connections.connection_for(
            session, is_initialized=not greets
        )
        if greets:
            self._send_handshake(session, call, frame, connection, sharers)
            return
        if sharers is not None:
            await self._send_on_shared(session, call, frame, connection, sharers)
            return
        connection.send_call(call, frame)

    async def _send_to_modern(self, session: Session, call: Call, frame: Frame) -> None:
        """Send a legacy client's request to a modern server."""
        if call.method != protocol.INITIALIZE:
            await self._bridge.send_to_modern(self._server.connections, session, call, frame)
            return
        wanted = jsonrpc.decode_text(frame.parameters.get("protocolVersion"))
        answer = eras.welcome_message(self._server.connections.discover_result, wanted)
        session.version = str(answer["protocolVersion"])
        session.is_initialized = True
        self._subscriptions.attach(session, call.client_stream.actor, self._server.name)
        call.deliver_answer(jsonrpc.make_result(call.client_request_id, answer))

    def _send_handshake(
        self,
        session: Session,
        call: Call,
        frame: Frame,
        connection: UpstreamConnection,
        users: ConnectionUsers | None,
    ) -> None:
        if users is None:
            call.adapt_answer = _make_initialize_adapter(session, connection)
            if frame.params is not UNSET:
                said = self._server.connections.initialize_params_for(connection, frame.params)
                frame = jsonrpc.with_params(frame, said)
            connection.send_call(call, frame)
            return
        assert connection.initialize_result is not None
        wanted = jsonrpc.decode_text(frame.parameters.get("protocolVersion"))
        agreed = (
            jsonrpc.decode_text(connection.initialize_result.get("protocolVersion"))
            or protocol.LATEST_HANDSHAKE
        )
        # Versions are dates, so the smaller string is the older version.
        session.version = min(wanted, agreed) if wanted in protocol.HANDSHAKE_VERSIONS else agreed
        session.is_initialized = True
        session.store_mgp_terms(connection.initialize_result)
        hello = (
            connection.initialize_result
            if session.speaks_mgp_with_servers
            else strip_mgp(connection.initialize_result)
        )
        if frame.params is UNSET or not is_live_host(frame.params):
            hello = mcpl.strip_mcpl(hello)
        answer = {**hello, "protocolVersion": session.version}
        call.deliver_answer(jsonrpc.make_result(call.client_request_id, answer))

    def _filter_list_result(self, call: Call) -> None:
        """Let a list result hold only entries that the actor may use when it arrives."""
        kind = KIND_OF_LIST.get(call.method)
        if kind is not None:
            call.filter_result = lambda frame: self._without_hidden(call, kind, frame)

    def _without_hidden(self, call: Call, kind: EntryKind, frame: Frame) -> Frame:
        actor = call.client_stream.actor
        seen = self._call_gate.list_filter(actor, kind, self._server.name)
        return frame if seen is None else _without_hidden(frame, kind, seen)

    async def _send_on_shared(
        self,
        session: Session,
        call: Call,
        frame: Frame,
        connection: UpstreamConnection,
        users: ConnectionUsers,
    ) -> None:
        if call.method == protocol.PING:
            call.deliver_answer(jsonrpc.make_result(call.client_request_id, {}))
        elif call.method == protocol.SET_LEVEL:
            session.log_level = eras.log_level_in(frame)
            lowest = {"level": users.lowest_level() or session.log_level}
            connection.send_call(call, jsonrpc.with_params(frame, jsonrpc.to_raw(lowest)))
        elif call.method in (protocol.SUBSCRIBE, protocol.UNSUBSCRIBE):
            track_resource_subscription(session, call, frame, connection, users)
        else:
            connection.send_call(call, frame)


async def finish_sending(waiting: Awaitable[None] | None) -> None:
    """Await what remains to be done before a request is sent, if it was not sent at once."""
    if waiting is not None:
        await waiting


async def await_sent(call: Call, waiting: Awaitable[None]) -> Call:
    """Return a call once what it waited for has ended. A failure answers it."""
    try:
        await waiting
    except (Unavailable, MalformedMessage) as error:
        call.fail(error)
    return call


def tool_name_in(frame: Frame) -> str | None:
    """Return the name of the tool that a request calls."""
    if frame.tool is not None:
        return frame.tool.name
    return jsonrpc.decode_text(frame.parameters.get("name"))


MAX_HELD_STATUSES: Final = 8
"""How many notifications about tasks one call keeps until its answer names its own task."""


class TaskPublication:
    """The one task that a call may name to its client, by its public id.

    A call of a tool learns its task from the answer. Until then it keeps the notifications about
    tasks, because many clients share the server. (attack 7)
    """

    def __init__(
        self, call: Call, server: str, tool: str, task_ids: eras.TaskIds, task: str | None
    ) -> None:
        self._call = call
        self._server = server
        self._tool = tool
        self._task_ids = task_ids
        self._task = task
        self._held: list[Frame] = []
        if task is not None:
            self._publish(task)

    def adapt_answer(self, frame: Frame) -> Frame:
        if frame.result is UNSET:
            return frame
        if self._task is not None:
            return msgspec.structs.replace(
                frame, result=eras.rename_tasks(frame.result, self._name)
            )
        published = eras.rename_tasks(frame.result, self._publish)
        for status in self._held:
            self._call.deliver_notification(status)
        return msgspec.structs.replace(frame, result=published)

    def adapt_notification(self, frame: Frame) -> Frame | None:
        if frame.params is UNSET or bytes(memoryview(frame.params)[:1]) != b"{":
            return frame
        if frame.method == eras.STATUS and self._is_of_other(frame):
            if self._task is None and len(self._held) < MAX_HELD_STATUSES:
                self._held.append(frame)
            return None
        return jsonrpc.with_params(frame, eras.rename_tasks(frame.params, self._name))

    def _is_of_other(self, frame: Frame) -> bool:
        return self._task is None or eras.task_named_in(frame) != self._task

    def _publish(self, began: str) -> str:
        self._task, client = began, self._call.client
        public = self._name(began)
        if isinstance(client, Session):
            client.note_task(self._server, began, public)
        return public

    def _name(self, task: str) -> str:
        if task != self._task:
            return task
        party = self._call.client_stream.actor.party
        return self._task_ids.public(party, self._server, self._tool, task)


def publish_task_ids(
    call: Call, server: str, tool: str, task_ids: eras.TaskIds, task: str | None = None
) -> None:
    """Replace the ids of one task by its public id, in all that a client receives of a call."""
    publication = TaskPublication(call, server, tool, task_ids, task)
    call.adapt_answer = publication.adapt_answer
    call.adapt_notification = publication.adapt_notification


def task_request(
    call: Call,
    frame: Frame,
    task_ids: eras.TaskIds,
    require_tool: Callable[[Call, str, str], None],
) -> tuple[str, str, Frame]:
    """Return the server of a task, its own id of it, and the request with that id.

    Raises MalformedMessage if the task is not of this principal, or if the principal may no longer
    call the tool of the task.
    """
    params, party = frame.parameters, call.client_stream.actor.party
    named = jsonrpc.decode_text(params.get("taskId"))
    server, tool, task = task_ids.decode(party, named)
    require_tool(call, server, tool)
    call.tool = tool
    publish_task_ids(call, server, tool, task_ids, task)
    renamed = jsonrpc.with_params(frame, jsonrpc.to_raw({**params, "taskId": task}))
    return server, task, renamed


def with_name(headers: Headers, name: str | None) -> Headers:
    """Return the headers with the name header set to the name that the server knows."""
    kept = tuple(pair for pair in headers if pair[0] != protocol.NAME_HEADER)
    return kept if name is None else (*kept, (protocol.NAME_HEADER, encode_header_value(name)))


def track_resource_subscription(
    session: Session,
    call: Call,
    frame: Frame,
    connection: UpstreamConnection,
    users: ConnectionUsers,
) -> None:
    """Count the subscribers of a resource on a shared connection.

    The server receives an unsubscribe request only from the last subscriber.
    """
    uri = jsonrpc.decode_text(frame.parameters.get("uri"))
    if uri is None:
        raise MalformedMessage("uri is missing", INVALID_PARAMS)
    if call.method == protocol.SUBSCRIBE:
        users.follow(session, uri)
    elif not users.unfollow(session, uri):
        call.deliver_answer(jsonrpc.make_result(call.client_request_id, {}))
        return
    connection.send_call(call, frame)


def _make_initialize_adapter(
    session: Session, connection: UpstreamConnection
) -> Callable[[Frame], Frame]:
    def note(frame: Frame) -> Frame:
        assert frame.result is not UNSET
        connection.store_initialize_result(frame.result)
        said = connection.initialize_result or {}
        session.version = (
            jsonrpc.decode_text(said.get("protocolVersion")) or protocol.LATEST_HANDSHAKE
        )
        session.is_initialized = True
        session.store_mgp_terms(said)
        if connection.live_handler is None:
            return frame
        # The gateway offered MCPL to the server; the client did not.
        kept = jsonrpc.to_raw(mcpl.strip_mcpl(said))
        return msgspec.structs.replace(frame, result=kept)

    return note


def _without_hidden(frame: Frame, kind: EntryKind, is_visible: Sees) -> Frame:
    """Return a list result without the entries that the actor may not use.

    Raises MalformedMessage if the list cannot be decoded.
    """
    assert frame.result is not UNSET
    result = jsonrpc.decode_members(frame.result)
    try:
        entries = _list_of_objects.decode(result.get(kind, b"[]"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedMessage(f"a misshapen list of {kind}") from None
    kept = [
        entry
        for entry in entries
        if is_visible(jsonrpc.decode_text(entry.get(NAME_MEMBER_BY_KIND[kind])) or "", entry)
    ]
    if len(kept) == len(entries):
        return frame
    return msgspec.structs.replace(frame, result=jsonrpc.to_raw({**result, kind: kept}))


def _reference(params: Mapping[str, Raw]) -> tuple[EntryKind, str | None]:
    """Return the kind and the name of the entry whose argument a request completes."""
    reference = jsonrpc.decode_members(params.get("ref", Raw(b"{}")))
    if jsonrpc.decode_text(reference.get("type")) == "ref/prompt":
        return EntryKind.PROMPT, jsonrpc.decode_text(reference.get("name"))
    return EntryKind.TEMPLATE, jsonrpc.decode_text(reference.get("uri"))
