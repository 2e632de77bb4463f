"""The endpoint `/views/{name}/mcp`, in front of the tools of one view."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from comity.catalog.catalog import page_of
from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.gateway.all_servers import (
    AllServersEndpoint,
    Route,
    finish_checks,
)
from comity.gateway.one_server import URI_METHODS, finish_sending, publish_task_ids
from comity.gateway.pipeline import may_be_sent
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.jsonrpc import Frame
from comity.sessions.calls import Call
from comity.sessions.sessions import Session
from comity.telemetry.tracing import Headers
from comity.views.service import ServedView, ViewService


class ViewEndpoint(AllServersEndpoint):
    """The endpoint of one view.

    Its tools have the names and the definitions of the view. All checks and the audit log see the
    real tool and the arguments that its server receives.
    """

    def __init__(self, view: ServedView, views: ViewService, endpoint: AllServersEndpoint) -> None:
        """Make the endpoint of a view, with the parts of the endpoint of all servers."""
        super().__init__(
            endpoint.servers,
            endpoint.call_gate,
            endpoint._active_calls,
            endpoint._bridge,
            endpoint.subscriptions,
            endpoint.gateway_info,
            status_methods=endpoint.status_methods,
            methods=endpoint.methods,
            tasks=endpoint.tasks,
        )
        self.view = self._view = view
        self._views = views

    def is_visible_to(self, actor: Actor) -> bool:
        return self._views.is_visible_to(actor, self._view.name)

    def _route_tool_call(
        self, call: Call, name: str | None, frame: Frame, context: Session | Headers
    ) -> Coroutine[Any, Any, None] | None:
        call.view = self._view.name
        plan = self.call_gate.view_plan_for(call, self._view, name)
        entry, tool = plan.entry, plan.view_tool
        assert tool is not None
        call.target = plan.target
        if tool.rewrite is None:
            outgoing = jsonrpc.with_tool_name(frame, entry.name)
        else:
            outgoing = tool.rewrite.apply(frame, entry.name)
        if outgoing.tool is None and "task" in frame.parameters:
            publish_task_ids(call, entry.server, entry.name, self.tasks)
        server = self.server_of(call, entry)
        if not isinstance(context, Session) and (tool.has_header_arguments or len(context) > 2):
            # The client's headers may repeat arguments. The server gets headers that repeat the
            # final ones.
            context = ()

        async def go_on() -> None:
            await finish_sending(self._send_checked(call, plan, server, outgoing, context))

        outcome = self.call_gate.pipeline.run(call, plan, outgoing)
        if outcome is None:
            if call.sign_in is not None:
                call.sign_in.go_on = go_on
            return self._send_checked(call, plan, server, outgoing, context)
        if isinstance(outcome, Awaitable):
            return finish_checks(call, outcome, go_on)
        may_be_sent(call, outcome, go_on)
        return None

    def _require_tool(self, call: Call, server: str, tool: str) -> None:
        call.view = self._view.name
        if not self._view.serves_tool(server, tool):
            raise MalformedMessage(eras.UNKNOWN_TASK_MESSAGE, INVALID_PARAMS)
        super()._require_tool(call, server, tool)

    def _page(
        self, actor: Actor, kind: EntryKind, cursor: str | None
    ) -> tuple[list[bytes], str | None]:
        listed = self._tools_for(actor) if kind is EntryKind.TOOL else self._others_for(actor, kind)
        return page_of(listed, cursor)

    def _tools_for(self, actor: Actor) -> list[CatalogEntry]:
        return [
            tool.listed
            for tool in self._view.compiled.tools
            if not tool.withheld
            and self._has_server(tool.entry.server)
            and self.call_gate.is_listed(actor, EntryKind.TOOL, tool.entry, self._view.name)
        ]

    def _others_for(self, actor: Actor, kind: EntryKind) -> list[CatalogEntry]:
        """Return the resources or prompts of the view: of whole servers, and those of its tools."""
        catalog, found = self.call_gate.catalog, dict[str, CatalogEntry]()
        for server in catalog.servers(kind):
            if not self._view.concerns(server) or not self._has_server(server):
                continue
            is_whole = self._view.is_whole(server)
            for entry in catalog.entries(server, kind):
                if (
                    (is_whole or (server, entry.name) in self._view.compiled.interfaces)
                    and entry.key not in found
                    and self.call_gate.is_listed(actor, kind, entry, self._view.name)
                ):
                    found[entry.key] = entry
        return [found[key] for key in sorted(found)]

    def _find_entry(self, call: Call, frame: Frame, params: dict[str, jsonrpc.Raw]) -> Route:
        call.view = self._view.name
        if call.method == protocol.GET_PROMPT:
            entry = self._find_prompt(call, jsonrpc.decode_text(params.get("name")))
            renamed = jsonrpc.to_raw({**params, "name": entry.name})
            return entry, jsonrpc.with_params(frame, renamed)
        if call.method in URI_METHODS:
            return self._find_resource(call, jsonrpc.decode_text(params.get("uri"))), frame
        return super()._find_entry(call, frame, params)

    def _find_completed_entry(
        self, call: Call, frame: Frame, params: dict[str, jsonrpc.Raw]
    ) -> Route:
        reference = jsonrpc.decode_members(params.get("ref", jsonrpc.Raw(b"{}")))
        if jsonrpc.decode_text(reference.get("type")) != "ref/prompt":
            return self._find_resource(call, jsonrpc.decode_text(reference.get("uri"))), frame
        entry = self._find_prompt(call, jsonrpc.decode_text(reference.get("name")))
        renamed = {**params, "ref": {**reference, "name": entry.name}}
        return entry, jsonrpc.with_params(frame, jsonrpc.to_raw(renamed))

    def _find_prompt(self, call: Call, name: str | None) -> CatalogEntry:
        entry = None
        if name is not None:
            entry = self.call_gate.catalog.find_public(EntryKind.PROMPT, name)
        if entry is not None and not self._view.is_whole(entry.server):
            entry = None
        return self.call_gate.find_in_view(call, EntryKind.PROMPT, entry, name)

    def _find_resource(self, call: Call, uri: str | None) -> CatalogEntry:
        """Return the resource or the template at a URI, if it belongs to the view.

        Raises MalformedMessage if the actor may not read it here.
        """
        return self.call_gate.find_resource_in_view(call, uri, self._view.serves_resource)

    def _may_read(self, actor: Actor, server: str, uri: str) -> bool:
        is_served = self._view.serves_resource(server, uri)
        return is_served and self.call_gate.may_read(actor, server, uri, self._view.name)

    def _uri_filter(self, actor: Actor) -> Callable[[str], bool]:
        return lambda uri: any(
            self._may_read(actor, entry.server, uri)
            for entry in self.call_gate.catalog.find_resources(uri)
        )
