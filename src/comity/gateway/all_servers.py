"""The endpoint `/mcp`, in front of all servers."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from msgspec import Raw

from comity.approvals.pending_calls import GoOn
from comity.catalog.catalog import UNKNOWN_CURSOR_TEXT
from comity.catalog.discovery import OwnTools
from comity.catalog.listing import KIND_OF_LIST
from comity.errors import INVALID_PARAMS, METHOD_NOT_FOUND, MalformedMessage, Unavailable
from comity.events.webhooks import model
from comity.gateway.era_bridge import EraBridge
from comity.gateway.method_access import request_access, require_method
from comity.gateway.mgp_methods import ServerStatusMethods, with_mgp
from comity.gateway.one_server import (
    URI_METHODS,
    await_sent,
    finish_sending,
    publish_task_ids,
    task_request,
    tool_name_in,
    track_resource_subscription,
    with_name,
)
from comity.gateway.pipeline import CallGate, CallPlan, Outcome, may_be_sent
from comity.gateway.retries import RetryActions
from comity.gateway.subscriptions import ListSubscriptions
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.eras import detach_request
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import (
    CLIENT_EXTENSIONS,
    VIEW_EXTENSIONS,
    of_request,
    strip_mgp_request,
)
from comity.mcp.protocol import Era
from comity.servers.connections import ServerConnections
from comity.servers.service import ServerService
from comity.servers.supervisor import UpstreamServer
from comity.sessions.calls import ActiveCalls, Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.methods import MethodRequest, MethodTable
from comity.sessions.sessions import Session
from comity.sessions.upstream import UpstreamConnection
from comity.telemetry.tracing import Headers
from comity.views.service import ServedView

CAPABILITIES: Final[Mapping[str, Mapping[str, object]]] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
    "events": model.CAPABILITY,
}
VIEW_CAPABILITIES: Final = {name: CAPABILITIES[name] for name in CAPABILITIES if name != "events"}
TASK_CAPABILITIES: Final[dict[str, object]] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
LIST_TTL_MS: Final = 5000
"""How long a modern client may cache a result of the gateway."""


class GatewayInfo:
    """The gateway's own name, version and capabilities."""

    def __init__(self, servers: ServerService, implementation: Mapping[str, object]) -> None:
        self.implementation = implementation
        self._servers = servers

    def capabilities(self, *, in_view: bool) -> dict[str, Mapping[str, object]]:
        """Return the capabilities for a legacy client. `tasks` is present if a server has it."""
        plain = VIEW_CAPABILITIES if in_view else CAPABILITIES
        known = any(
            b'"tasks"' in bytes(s.connections.initialize_result.get("capabilities", Raw()))
            for s in self._servers
        )
        return {**plain, "tasks": TASK_CAPABILITIES} if known else {**plain}

    def discover_result(self, frame: Frame, *, has_tasks: bool, in_view: bool) -> dict[str, object]:
        """Return the result of `server/discover` for a modern client."""
        offered = VIEW_CAPABILITIES if in_view else CAPABILITIES
        plain = {name: terms for name, terms in offered.items() if name != "logging"}
        if has_tasks:
            plain["extensions"] = {eras.EXTENSION.decode(): {}}
        asked = jsonrpc.decode_members(frame.parameters["_meta"])[protocol.CLIENT_CAPABILITIES]
        terms = of_request(frame.params, VIEW_EXTENSIONS if in_view else CLIENT_EXTENSIONS)
        return self.add_modern_fields(
            {
                "supportedVersions": list(protocol.MODERN_VERSIONS),
                "capabilities": with_mgp(plain, terms, asked),
            }
        )

    def add_modern_fields(self, result: dict[str, object]) -> dict[str, object]:
        """Return a result with the fields that the modern protocol version requires."""
        # The list depends on the actor, so shared caches must not keep it.
        return {
            "resultType": "complete",
            "ttlMs": LIST_TTL_MS,
            "cacheScope": "private",
            **result,
            "_meta": {protocol.SERVER_INFO: self.implementation},
        }


async def modern_connection(server: UpstreamServer, actor: Actor) -> UpstreamConnection:
    if Era.MODERN not in server.connections.eras:
        raise MalformedMessage("this server has no tasks of this MCP version", METHOD_NOT_FOUND)
    return server.connections.modern_connection(actor)


NAMED_METHODS: Final = frozenset({protocol.CALL_TOOL, protocol.GET_PROMPT})
type Route = tuple[CatalogEntry, Frame]


class AllServersEndpoint:
    """The endpoint of all servers."""

    # The view that the endpoint shows, at the endpoint of a view.
    view: ServedView | None = None

    def __init__(
        self,
        servers: ServerService,
        call_gate: CallGate,
        active_calls: ActiveCalls,
        bridge: EraBridge,
        subscriptions: ListSubscriptions,
        gateway_info: GatewayInfo,
        *,
        status_methods: ServerStatusMethods | None = None,
        methods: MethodTable | None = None,
        tasks: eras.TaskIds = eras.UNKEYED_TASK_IDS,
        own_tools: OwnTools | None = None,
    ) -> None:
        self.servers = servers
        self.call_gate = call_gate
        self._active_calls = active_calls
        self._bridge = bridge
        self.gateway_info = gateway_info
        self.subscriptions = subscriptions
        self.tasks = tasks
        if status_methods is None:
            status_methods = ServerStatusMethods(servers, call_gate, active_calls)
        self.status_methods = status_methods
        self.methods = methods or MethodTable()
        self.methods.register(self.status_methods)
        # The tools that clients see instead of the complete list, if tool discovery is on.
        self.own_tools = own_tools
        self._handler_by_method: dict[str, Callable[[Session, Call, Frame], Awaitable[None]]] = {
            protocol.INITIALIZE: self._initialize,
            protocol.PING: self._ping,
            protocol.SET_LEVEL: self._set_level,
        }

    async def handle_request(
        self, session: Session, frame: Frame, client_stream: ClientStream
    ) -> Call:
        started = self.start_request(session, frame, client_stream)
        return started if isinstance(started, Call) else await started

    def start_request(
        self, session: Session, frame: Frame, client_stream: ClientStream
    ) -> Call | Coroutine[Any, Any, Call]:
        call = self._active_calls.begin(frame, client_stream, session)
        call.is_for_all_servers = True
        if call.method == protocol.CALL_TOOL:
            return self._start_tool_call(call, frame, session)
        return self._handle_other_request(session, call, frame)

    async def _handle_other_request(self, session: Session, call: Call, frame: Frame) -> Call:
        if await self.call_gate.is_over_limit(call):
            return call
        try:
            self._require_method(call, Era.HANDSHAKE)
            own = self._handler_by_method.get(call.method)
            if own is not None:
                await own(session, call, frame)
            elif call.method in KIND_OF_LIST:
                call.deliver_answer(
                    jsonrpc.make_result(call.client_request_id, self._list(call, frame))
                )
            elif call.method in eras.METHODS:
                await self._route_task(
                    call, frame, lambda server: self._connection_for(session, server)
                )
            elif self.methods.has_method(call.method):
                await self._answer_own_method(MethodRequest(call, session, session.mgp, frame))
            else:
                await self._route_in_session(session, call, frame)
        except (Unavailable, MalformedMessage) as error:
            call.fail(error)
        return call

    def is_visible_to(self, actor: Actor) -> bool:
        """Return True: this endpoint exists for every actor."""
        return True

    def handle_message(
        self, session: Session, frame: Frame, actor: Actor = ANONYMOUS
    ) -> Awaitable[None] | None:
        return self.call_gate.pass_message(
            session, frame, actor, lambda notice: _send_notification(session, notice)
        )

    async def handle_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call:
        started = self.start_modern_request(frame, client_stream, headers)
        return started if isinstance(started, Call) else await started

    def start_modern_request(
        self, frame: Frame, client_stream: ClientStream, headers: Headers
    ) -> Call | Coroutine[Any, Any, Call]:
        call = self._active_calls.begin(frame, client_stream, None)
        call.is_for_all_servers = True
        if call.method == protocol.CALL_TOOL:
            return self._start_tool_call(call, frame, headers)
        return self._handle_other_modern_request(call, frame, headers)

    async def _handle_other_modern_request(
        self, call: Call, frame: Frame, headers: Headers
    ) -> Call:
        if await self.call_gate.is_over_limit(call):
            return call
        try:
            self._require_method(call, Era.MODERN)
            if call.method == protocol.DISCOVER:
                call.deliver_answer(
                    jsonrpc.make_result(call.client_request_id, self._discover_result(frame))
                )
            elif call.method in KIND_OF_LIST:
                listed = self._list(call, frame)
                call.deliver_answer(
                    jsonrpc.make_result(
                        call.client_request_id, self.gateway_info.add_modern_fields(listed)
                    )
                )
            elif call.method == protocol.LISTEN:
                await self.subscriptions.listen(call, frame, view=self.view)
            elif call.method in eras.METHODS:
                await self._route_task(
                    call,
                    frame,
                    lambda server: modern_connection(server, call.client_stream.actor),
                    headers,
                )
            elif self.methods.has_method(call.method):
                await self._answer_own_method(
                    MethodRequest(call, None, of_request(frame.params), frame)
                )
            else:
                await self._route_modern(call, frame, headers)
        except (Unavailable, MalformedMessage) as error:
            call.fail(error)
        return call

    def _require_method(self, call: Call, version: Era) -> None:
        access = request_access(call.method)
        here = access.at_gateway if self.view is None else access.at_view
        require_method(access, here, version, call.method)

    async def _answer_own_method(self, request: MethodRequest) -> None:
        """Answer a method of the gateway itself, in the form of the client's protocol version."""
        answer = await self.methods.answer(request)
        if answer is not None:
            told = (
                answer
                if request.session is not None
                else self.gateway_info.add_modern_fields(answer)
            )
            request.call.deliver_answer(jsonrpc.make_result(request.call.client_request_id, told))

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
        gate = self.call_gate
        if not is_counted:
            refused = gate.refuse_over_limit(call)
            if refused is True:
                return call
            if refused is not False:
                return self._start_counted_call(refused, call, frame, context)
        try:
            if call.client is None and frame.tool is None:
                frame = gate.pipeline.strip_gateway_parts(call, frame)
            name = tool_name_in(frame)
            if self.own_tools is not None and self.own_tools.has_tool(name):
                return await_sent(call, self._call_own_tool(call, frame, context))
            waiting = self._route_tool_call(call, name, frame, context)
            if waiting is not None:
                return await_sent(call, waiting)
        except (Unavailable, MalformedMessage) as error:
            call.fail(error)
        return call

    async def _call_own_tool(self, call: Call, frame: Frame, context: Session | Headers) -> None:
        """Let the gateway answer a call of its own tool, or send the call of the target tool."""
        session = context if isinstance(context, Session) else None
        aimed = await self._target_call(call, session, frame)
        if aimed is not None:
            # The headers name the gateway's tool. The server needs headers that name its own tool.
            await self._reroute(call, aimed, () if session is None else session)

    async def _reroute(self, call: Call, frame: Frame, context: Session | Headers) -> None:
        await finish_sending(self._route_tool_call(call, tool_name_in(frame), frame, context))

    def _route_tool_call(
        self, call: Call, name: str | None, frame: Frame, context: Session | Headers
    ) -> Coroutine[Any, Any, None] | None:
        """Check a call of a server's tool and send it. The result is what remains to be awaited."""
        plan = self.call_gate.plan_for(call, "", name)
        entry, renamed = plan.entry, jsonrpc.with_tool_name(frame, plan.entry.name)
        if renamed.tool is None and "task" in frame.parameters:
            publish_task_ids(call, entry.server, entry.name, self.tasks)
        server = self.server_of(call, entry)
        if self.own_tools is not None:
            self.own_tools.note_use(call, entry)

        async def go_on() -> None:
            await finish_sending(self._send_checked(call, plan, server, renamed, context))

        outcome = self.call_gate.pipeline.run(call, plan, frame)
        if outcome is None:
            if call.sign_in is not None:
                call.sign_in.go_on = go_on
            return self._send_checked(call, plan, server, renamed, context)
        if isinstance(outcome, Awaitable):
            return finish_checks(call, outcome, go_on)
        may_be_sent(call, outcome, go_on)
        return None

    def _send_checked(
        self,
        call: Call,
        plan: CallPlan,
        server: UpstreamServer,
        outgoing: Frame,
        context: Session | Headers,
    ) -> Coroutine[Any, Any, None] | None:
        """Send a call that passed the pipeline. The result is what remains to be awaited."""
        if self.call_gate.retries.is_enabled:
            self._register_retries(call, plan, outgoing, context)
        return self._forward(call, server, outgoing, context)

    def _register_retries(
        self, call: Call, plan: CallPlan, outgoing: Frame, context: Session | Headers
    ) -> None:
        """Register a tool call for retries, if the operator allows them for its tool."""
        entry = plan.entry
        if not self.call_gate.retries.plan_of(entry):
            return
        server = self.server_of(call, entry)

        async def again() -> None:
            await finish_sending(self._forward(call, server, outgoing, context))

        means = RetryActions(
            lambda: self.call_gate.pipeline.may_repeat(call, plan, outgoing),
            again,
            lambda other, made: self._reroute(other, made, context),
            is_for_all_servers=True,
            has_fallback=self.view is None,
        )
        self.call_gate.retries.watch_call(call, entry, outgoing, means)

    async def _target_call(self, call: Call, session: Session | None, frame: Frame) -> Frame | None:
        """Return the request for the target tool of a call of a gateway tool.

        Returns None if the gateway has answered the call itself.
        """
        assert self.own_tools is not None
        terms = of_request(frame.params) if session is None else session.mgp
        return await self.own_tools.handle_call(MethodRequest(call, session, terms, frame))

    async def _initialize(self, session: Session, call: Call, frame: Frame) -> None:
        params = frame.parameters
        session.store_client_info(params)
        asked = self.status_methods.negotiate(
            session, CLIENT_EXTENSIONS if self.view is None else VIEW_EXTENSIONS
        )
        session.sees_all_servers = True
        wanted = jsonrpc.decode_text(params.get("protocolVersion"))
        session.version = (
            wanted if wanted in protocol.HANDSHAKE_VERSIONS else protocol.LATEST_HANDSHAKE
        )
        session.is_initialized = True
        actor = call.client_stream.actor
        session.may_read = self._uri_filter(actor)
        self.subscriptions.attach(session, actor, view=self.view)
        self.status_methods.attach(session, actor)
        declared = self.gateway_info.capabilities(in_view=self.view is not None)
        answer = {
            "protocolVersion": session.version,
            "capabilities": with_mgp(declared, session.mgp, asked),
            "serverInfo": self.gateway_info.implementation,
        }
        call.deliver_answer(jsonrpc.make_result(call.client_request_id, answer))

    async def _ping(self, session: Session, call: Call, frame: Frame) -> None:
        call.deliver_answer(jsonrpc.make_result(call.client_request_id, {}))

    async def _set_level(self, session: Session, call: Call, frame: Frame) -> None:
        session.log_level = eras.log_level_in(frame)
        used = {
            self.servers.get(name)
            for name in (*session.own_connections, *session.shared_connections)
        }
        await asyncio.gather(*(_update_log_level(session, server) for server in used if server))
        call.deliver_answer(jsonrpc.make_result(call.client_request_id, {}))

    def _discover_result(self, frame: Frame) -> dict[str, object]:
        has_tasks = self.call_gate.pipeline.own_tasks is not None
        in_view = self.view is not None
        return self.gateway_info.discover_result(frame, has_tasks=has_tasks, in_view=in_view)

    def _list(self, call: Call, frame: Frame) -> dict[str, object]:
        kind = KIND_OF_LIST[call.method]
        cursor_member = frame.parameters.get("cursor")
        cursor = jsonrpc.decode_text(cursor_member)
        if cursor_member is not None and cursor is None:
            raise MalformedMessage("a cursor is a string", INVALID_PARAMS)
        own = self.own_tools if kind is EntryKind.TOOL else None
        instead = None if own is None else own.list_definitions(call)
        if instead is not None:
            if cursor is not None:
                # These tools fit on one page, so the gateway never issued a cursor.
                raise MalformedMessage(UNKNOWN_CURSOR_TEXT, INVALID_PARAMS)
            # The next call can change this list, so clients must not cache it.
            stamps = {"ttlMs": 0} if call.client is None else {}
            return {kind: [Raw(definition) for definition in instead], **stamps}
        definitions, following = self._page(call.client_stream.actor, kind, cursor)
        if kind is EntryKind.TOOL and call.client is not None:
            definitions = [eras.handshake_tool(definition) for definition in definitions]
        listed: dict[str, object] = {kind: [Raw(definition) for definition in definitions]}
        if following is not None:
            listed["nextCursor"] = following
        return listed

    def _page(
        self, actor: Actor, kind: EntryKind, cursor: str | None
    ) -> tuple[list[bytes], str | None]:
        """Return one page of the entries that an actor may use here, and the next cursor."""
        return self.call_gate.page(actor, kind, self._has_server, cursor)

    def _has_server(self, server: str) -> bool:
        return self.servers.get(server) is not None

    async def _route_in_session(self, session: Session, call: Call, frame: Frame) -> None:
        offer, renamed = self._find_entry(call, frame, frame.parameters)
        await finish_sending(self._forward(call, self.server_of(call, offer), renamed, session))

    def _forward(
        self, call: Call, server: UpstreamServer, outgoing: Frame, context: Session | Headers
    ) -> Coroutine[Any, Any, None] | None:
        """Send a request at once if its connection is open. Otherwise return what opens it."""
        if not isinstance(context, Session):
            return self._forward_modern(call, server.connections, outgoing, context)
        outgoing = detach_request(outgoing) if call.is_detached else outgoing
        if Era.HANDSHAKE not in server.connections.eras:
            return self._bridge.send_to_modern(server.connections, context, call, outgoing)
        connection = context.own_connections.get(server.name) or context.shared_connections.get(
            server.name
        )
        if connection is None or not connection.is_open or call.method not in NAMED_METHODS:
            return self._connect_and_send(context, call, server, outgoing)
        connection.send_call(call, outgoing)
        return None

    async def _connect_and_send(
        self, session: Session, call: Call, server: UpstreamServer, outgoing: Frame
    ) -> None:
        connection, sharers = await server.connections.connection_for(session, is_initialized=True)
        if sharers is not None and call.method in (protocol.SUBSCRIBE, protocol.UNSUBSCRIBE):
            track_resource_subscription(session, call, outgoing, connection, sharers)
        else:
            connection.send_call(call, outgoing)

    async def _connection_for(self, session: Session, server: UpstreamServer) -> UpstreamConnection:
        if Era.HANDSHAKE not in server.connections.eras:
            raise MalformedMessage("this server has no tasks of this MCP version", METHOD_NOT_FOUND)
        return (await server.connections.connection_for(session, is_initialized=True))[0]

    async def _route_task(
        self,
        call: Call,
        frame: Frame,
        connect: Callable[[UpstreamServer], Awaitable[UpstreamConnection]],
        headers: Headers = (),
    ) -> None:
        """Send a task request to the server that began the task.

        The gateway answers requests about its own tasks itself. Raises MalformedMessage if the task
        is unknown, or if the actor may no longer call its tool.
        """
        if self.call_gate.pipeline.answers_task(call, frame, self._require_tool):
            return
        name, task, renamed = task_request(call, frame, self.tasks, self._require_tool)
        server = self.servers.get(name)
        if server is None:
            raise MalformedMessage(eras.UNKNOWN_TASK_MESSAGE, INVALID_PARAMS)
        call.counters = self._active_calls.metrics.at(name)
        connection = await connect(server)
        # A grant may have ended while the connection was opened.
        self._require_tool(call, name, call.tool or "")
        connection.send_call(call, renamed, with_name(headers, task))

    def _require_tool(self, call: Call, server: str, tool: str) -> None:
        """Check the grant on the tool of a task. Raises MalformedMessage."""
        self.call_gate.require_tool(call, server, tool)

    async def _route_modern(self, call: Call, frame: Frame, headers: Headers) -> None:
        offer, renamed = self._find_entry(call, frame, frame.parameters)
        await self.forward_modern(call, self.server_of(call, offer).connections, renamed, headers)

    def register_retries(
        self, call: Call, plan: CallPlan, outgoing: Frame, headers: Headers
    ) -> None:
        """Register a modern tool call for retries, if the operator allows them for its tool."""
        if self.call_gate.retries.is_enabled:
            self._register_retries(call, plan, outgoing, headers)

    async def forward_modern(
        self, call: Call, connections: ServerConnections, outgoing: Frame, headers: Headers
    ) -> None:
        """Send a modern request that passed the pipeline, in the protocol version of its server."""
        await finish_sending(self._forward_modern(call, connections, outgoing, headers))

    def _forward_modern(
        self, call: Call, connections: ServerConnections, outgoing: Frame, headers: Headers
    ) -> Coroutine[Any, Any, None] | None:
        outgoing = detach_request(outgoing) if call.is_detached else outgoing
        if Era.MODERN not in connections.eras:
            return self._bridge.send_to_legacy(connections, call, outgoing, headers)
        if any(name == protocol.NAME_HEADER for name, _ in headers):
            headers = with_name(headers, _name_header(outgoing, call.method))
        else:
            # A client at stdio sends no headers, but a server at HTTP requires them.
            headers = self._bridge.headers_for(connections, outgoing)
        connection = connections.modern_connection(call.client_stream.actor)
        params = outgoing.params
        if (
            call.method == protocol.CALL_TOOL
            and params is not UNSET
            and eras.EXTENSION in bytes(params)
        ):
            publish_task_ids(call, connections.name, tool_name_in(outgoing) or "", self.tasks)
        connection.send_call(call, strip_mgp_request(outgoing), headers)
        return None

    def _find_entry(self, call: Call, frame: Frame, params: dict[str, Raw]) -> Route:
        """Return the catalog entry of a request, and the request with the server's own name.

        Raises MalformedMessage if the entry is unknown or the method is not routed here.
        """
        if call.method == protocol.GET_PROMPT:
            name = jsonrpc.decode_text(params.get("name"))
            offer = self.call_gate.find(call, EntryKind.PROMPT, name)
            renamed = jsonrpc.to_raw({**params, "name": offer.name})
            return offer, jsonrpc.with_params(frame, renamed)
        if call.method in URI_METHODS:
            return self.call_gate.find_resource(call, jsonrpc.decode_text(params.get("uri"))), frame
        if call.method == protocol.COMPLETE:
            return self._find_completed_entry(call, frame, params)
        raise MalformedMessage(
            f"{call.method} is not routed here; use the server's own endpoint", METHOD_NOT_FOUND
        )

    def _find_completed_entry(self, call: Call, frame: Frame, params: dict[str, Raw]) -> Route:
        """Return the prompt or resource template whose argument a request completes."""
        reference = jsonrpc.decode_members(params.get("ref", Raw(b"{}")))
        if jsonrpc.decode_text(reference.get("type")) == "ref/prompt":
            offer = self.call_gate.find(
                call, EntryKind.PROMPT, jsonrpc.decode_text(reference.get("name"))
            )
            renamed = {**params, "ref": {**reference, "name": offer.name}}
            return offer, jsonrpc.with_params(frame, jsonrpc.to_raw(renamed))
        uri = jsonrpc.decode_text(reference.get("uri"))
        return self.call_gate.find_template(call, uri), frame

    def _uri_filter(self, actor: Actor) -> Callable[[str], bool]:
        """Return a check whether an actor may read a URI here."""
        return self.call_gate.uri_filter(actor)

    def server_of(self, call: Call, entry: CatalogEntry) -> UpstreamServer:
        """Return the server of an entry, and count the call in that server's metrics.

        Raises MalformedMessage if the server no longer exists.
        """
        call.counters, call.tool = self._active_calls.metrics.at(entry.server), entry.name
        server = self.servers.get(entry.server)
        if server is None:
            raise MalformedMessage(f"no such name: {entry.key!r:.200}", INVALID_PARAMS)
        return server


def _send_notification(session: Session, notice: Frame) -> None:
    """Send a notification of a client to the servers of its session, if it is for all of them."""
    if notice.method == protocol.ROOTS_CHANGED:
        for connection in (
            *session.own_connections.values(),
            *session.shared_connections.values(),
        ):
            connection.send_message(notice)


async def finish_checks(call: Call, checking: Awaitable[Outcome], go_on: GoOn) -> None:
    if may_be_sent(call, await checking, go_on):
        await go_on()


async def _update_log_level(session: Session, server: UpstreamServer) -> None:
    """Set a server's log level to the lowest level that its sessions request."""
    with contextlib.suppress(Unavailable):
        connection, sharers = await server.connections.connection_for(session, is_initialized=True)
        await connection.set_level(session.log_level if sharers is None else sharers.lowest_level())


def _name_header(frame: Frame, method: str) -> str | None:
    """Return what the name header repeats: a tool, a prompt or the URI of a resource."""
    if frame.tool is not None:
        return frame.tool.name
    member = protocol.NAME_PARAM_OF.get(method)
    return None if member is None else jsonrpc.decode_text(frame.parameters.get(member))
