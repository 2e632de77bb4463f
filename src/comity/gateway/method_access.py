"""The methods of clients: in which MCP version each exists, and who may use it at each endpoint."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from comity.errors import METHOD_NOT_FOUND, MalformedMessage
from comity.mcp import eras, mcpl, protocol
from comity.mcp.mgp import METHOD_PREFIX
from comity.mcp.protocol import Era
from comity.policy.risk import PERMISSION_PREFIX


class Access(StrEnum):
    """The condition for the use of a method, which also says who answers it."""

    CALL = "call"
    """The call pipeline: a grant on the tool, then all of its stages."""
    ENTRY = "entry"
    """A grant on the prompt, the resource or the template that the request names."""
    FILTERED = "filtered"
    """Any actor that sees the path may: the result holds only what the actor may use."""
    CONNECTION = "connection"
    """Any actor that sees the path may: it concerns the client's own conversation."""
    TASK = "task"
    """The principal that began the task, while it may call the tool of the task."""
    GATEWAY = "gateway"
    """The gateway answers. The function of the method checks the grants."""
    SERVER = "server"
    """The server gets it, under a grant that covers the method at this server."""
    PRIVATE = "private"
    """As SERVER, and only over a connection that no other principal uses."""
    HOST = "host"
    """As PRIVATE, and only if the client itself is the MCPL host of that connection."""
    REFUSED = "refused"
    """Nobody."""


class MethodAccess(Struct, frozen=True):
    """The access to one method, at the endpoint of all servers, of a view and of one server."""

    at_gateway: Access
    at_view: Access
    at_server: Access
    versions: frozenset[Era] = frozenset(Era)


_LEGACY: Final = frozenset({Era.HANDSHAKE})
_MODERN: Final = frozenset({Era.MODERN})


def _everywhere(access: Access, versions: frozenset[Era] = frozenset(Era)) -> MethodAccess:
    return MethodAccess(access, access, access, versions)


_REFUSED: Final = _everywhere(Access.REFUSED)
# A view answers only what is about its own tools, prompts, resources and calls.
_GATEWAY: Final = MethodAccess(Access.GATEWAY, Access.REFUSED, Access.SERVER)
_HOST: Final = MethodAccess(Access.REFUSED, Access.REFUSED, Access.HOST)
_RELAYED: Final = MethodAccess(Access.REFUSED, Access.REFUSED, Access.SERVER)

REQUESTS: Final = {
    protocol.CALL_TOOL: _everywhere(Access.CALL),
    protocol.GET_PROMPT: _everywhere(Access.ENTRY),
    protocol.READ_RESOURCE: _everywhere(Access.ENTRY),
    # In the modern version a client listens instead, and the gateway filters each update.
    protocol.SUBSCRIBE: _everywhere(Access.ENTRY, _LEGACY),
    protocol.UNSUBSCRIBE: _everywhere(Access.ENTRY, _LEGACY),
    protocol.COMPLETE: _everywhere(Access.ENTRY),
    protocol.LIST_TOOLS: _everywhere(Access.FILTERED),
    protocol.LIST_PROMPTS: _everywhere(Access.FILTERED),
    protocol.LIST_RESOURCES: _everywhere(Access.FILTERED),
    protocol.LIST_TEMPLATES: _everywhere(Access.FILTERED),
    protocol.LISTEN: _everywhere(Access.FILTERED, _MODERN),
    protocol.INITIALIZE: _everywhere(Access.CONNECTION, _LEGACY),
    protocol.PING: _everywhere(Access.CONNECTION, _LEGACY),
    protocol.SET_LEVEL: _everywhere(Access.CONNECTION, _LEGACY),
    protocol.DISCOVER: _everywhere(Access.CONNECTION, _MODERN),
    eras.GET: _everywhere(Access.TASK),
    eras.CANCEL: _everywhere(Access.TASK),
    eras.RESULT: _everywhere(Access.TASK, _LEGACY),
    eras.UPDATE: _everywhere(Access.TASK, _MODERN),
    # All clients use a server with the same credentials, so its list has the tasks of all of them.
    eras.LIST: _REFUSED,
    # Only servers send these.
    protocol.SAMPLE: _REFUSED,
    protocol.ELICIT: _REFUSED,
    protocol.LIST_ROOTS: _REFUSED,
    "mgp/access/query": _GATEWAY,
    "mgp/access/grant": _GATEWAY,
    "mgp/access/revoke": _GATEWAY,
    "mgp/discovery/list": _GATEWAY,
    "mgp/discovery/register": _GATEWAY,
    "mgp/discovery/deregister": _GATEWAY,
    "mgp/health/ping": _GATEWAY,
    "mgp/health/status": _GATEWAY,
    "mgp/lifecycle/shutdown": _GATEWAY,
    "mgp/callback/respond": MethodAccess(Access.GATEWAY, Access.GATEWAY, Access.SERVER),
    "mgp/events/subscribe": _GATEWAY,
    "mgp/events/unsubscribe": _GATEWAY,
    # The server never saw the client's request ids. (MGP §12.7)
    "mgp/stream/cancel": _everywhere(Access.GATEWAY),
    "mgp/tools/discover": _GATEWAY,
    "mgp/tools/request": _GATEWAY,
    "mgp/tools/session": _GATEWAY,
    "mgp/tools/session/evict": _GATEWAY,
    "events/list": _GATEWAY,
    "events/subscribe": _GATEWAY,
    "events/unsubscribe": _GATEWAY,
    "events/poll": _GATEWAY,
}
"""The requests of clients that Comity knows by name."""

FAMILIES: Final = (
    # The operator decides about permissions.
    (PERMISSION_PREFIX, _REFUSED),
    # The gateway answers all of MGP itself, and forwards nothing of it.
    (METHOD_PREFIX, _RELAYED),
    # An unknown method about tasks would name them by the ids of the server.
    ("tasks/", _REFUSED),
    # A notification with an id is neither a request nor a notification.
    ("notifications/", _REFUSED),
    *((prefix, _HOST) for prefix in mcpl.METHOD_PREFIXES),
)
"""The requests that are known by how they begin, if `REQUESTS` does not name them."""


def require_method(access: MethodAccess, at_endpoint: Access, version: Era, method: str) -> None:
    """Refuse a method that its MCP version lacks, or that no client may use at an endpoint.

    Raises MalformedMessage.
    """
    if version not in access.versions or at_endpoint is Access.REFUSED:
        elsewhere = at_endpoint is Access.REFUSED and access.at_server is not Access.REFUSED
        hint = "; use the server's own endpoint" if elsewhere else ""
        raise MalformedMessage(f"there is no {method:.80} here{hint}", METHOD_NOT_FOUND)


def request_access(method: str) -> MethodAccess:
    """Return who may use a method.

    An extension that Comity does not know is between a client and one server. The gateway as a
    whole forwards nothing that it cannot name.
    """
    access = REQUESTS.get(method)
    if access is not None:
        return access
    return next((access for prefix, access in FAMILIES if method.startswith(prefix)), _RELAYED)


def notification_access(method: str) -> Access:
    """Return who may send a notification of a legacy client to the servers of its session.

    Cancellations and progress never come here: they belong to an open request, which has taken
    them. A modern client sends no notifications.
    """
    if method in (protocol.INITIALIZED, protocol.ROOTS_CHANGED):
        return Access.CONNECTION
    if method in (protocol.CANCELLED, protocol.PROGRESS):
        return Access.REFUSED
    if method.startswith(mcpl.METHOD_PREFIXES):
        return Access.HOST
    if method.startswith(METHOD_PREFIX):
        return Access.REFUSED
    return Access.PRIVATE
