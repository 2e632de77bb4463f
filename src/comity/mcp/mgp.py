"""MGP negotiation, and the lifecycle states that MGP names."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.protocol import CLIENT_CAPABILITIES

VERSION: Final = "0.3.0"
"""The MGP version of Comity. The history of MGP gives it to the text with §16. (D-01)"""

METHOD_PREFIX: Final = "mgp/"
LIST_SERVERS: Final = "mgp/discovery/list"
NOTICE_PREFIX: Final = "notifications/mgp."
EXTENSION_KEY: Final = "dev.comity/mgp"

_MGP_MEMBER: Final = "mgp"
_INSIDE: Final = {"experimental": _MGP_MEMBER, "extensions": EXTENSION_KEY}
_MAX_BYTES: Final = 64 * 1024
"""The limit of a peer's declaration, which Comity keeps as long as the connection."""


class MgpExtension(StrEnum):
    """The standard extensions, by their names in the negotiation. (MGP §2.2)"""

    SECURITY = "security"
    ACCESS_CONTROL = "access_control"
    AUDIT = "audit"
    CODE_SAFETY = "code_safety"
    LIFECYCLE = "lifecycle"
    STREAMING = "streaming"
    BIDIRECTIONAL = "bidirectional"
    DISCOVERY = "discovery"
    TOOL_DISCOVERY = "tool_discovery"


@dataclass(frozen=True, slots=True)
class MgpStatement:
    """The declaration of one peer. Comity never derives authority from it."""

    version: str
    extensions: frozenset[str]
    permissions: tuple[str, ...] = ()
    trust_level: str | None = None


class _MgpCapability(Struct):
    version: str
    extensions: list[str]
    permissions_required: list[str] = []
    server_id: str | None = None
    trust_level: str | None = None


def decode_statement(capabilities: Raw | None) -> MgpStatement | None:
    """Return the MGP declaration in these capabilities, or None if it is absent or unreadable."""
    try:
        places = _places({} if capabilities is None else jsonrpc.decode_members(capabilities))
        said = next(iter(places.values()), None)
        if said is None or len(said) > _MAX_BYTES:
            return None
        found = msgspec.convert(jsonrpc.decode_value(said), _MgpCapability)
    except (MalformedMessage, msgspec.ValidationError):
        # With an unreadable declaration, the connection is plain MCP.
        return None
    return MgpStatement(
        found.version,
        frozenset(found.extensions),
        tuple(found.permissions_required),
        found.trust_level,
    )


def declare_mgp(
    capabilities: Mapping[str, Mapping[str, object]],
    fields: Mapping[str, object],
    asked: Raw | None = None,
) -> dict[str, Mapping[str, object]]:
    """Return capabilities with an MGP declaration, at the standard key and at the peer's."""
    declared = {**capabilities, _MGP_MEMBER: fields}
    for place in {} if asked is None else _places(jsonrpc.decode_members(asked)):
        if place in _INSIDE:
            declared[place] = {**capabilities.get(place, {}), _INSIDE[place]: fields}
    return declared


def strip_mgp_capabilities(capabilities: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the capabilities without MGP, in any place."""
    left = {name: raw for name, raw in capabilities.items() if name != _MGP_MEMBER}
    for place, key in _INSIDE.items():
        inside = _inside(left, place)
        if key in inside:
            del inside[key]
            left[place] = jsonrpc.to_raw(inside)
            if not inside:
                del left[place]
    return left


def strip_mgp(hello: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return a server's declaration without MGP, for clients without MGP. (MGP §2.4)"""
    capabilities = hello.get("capabilities")
    if capabilities is None or decode_statement(capabilities) is None:
        return {**hello}
    return {
        **hello,
        "capabilities": jsonrpc.to_raw(
            strip_mgp_capabilities(jsonrpc.decode_members(capabilities))
        ),
    }


def _places(capabilities: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the places of an MGP declaration, in their order of precedence."""
    found = {_MGP_MEMBER: capabilities[_MGP_MEMBER]} if _MGP_MEMBER in capabilities else {}
    for place, key in _INSIDE.items():
        inside = _inside(capabilities, place)
        if key in inside:
            found[place] = inside[key]
    return found


def _inside(capabilities: Mapping[str, Raw], place: str) -> dict[str, Raw]:
    try:
        return jsonrpc.decode_members(capabilities[place]) if place in capabilities else {}
    except MalformedMessage:
        return {}


CLIENT_EXTENSIONS: Final[frozenset[str]] = frozenset(
    {
        MgpExtension.LIFECYCLE,
        MgpExtension.DISCOVERY,
        MgpExtension.ACCESS_CONTROL,
        MgpExtension.SECURITY,
        MgpExtension.CODE_SAFETY,
        MgpExtension.AUDIT,
        MgpExtension.STREAMING,
        MgpExtension.BIDIRECTIONAL,
        MgpExtension.TOOL_DISCOVERY,
    }
)
"""The extensions that the gateway provides to a client, in the role of a server."""

VIEW_EXTENSIONS: Final[frozenset[str]] = CLIENT_EXTENSIONS - {
    MgpExtension.LIFECYCLE,
    MgpExtension.DISCOVERY,
    MgpExtension.ACCESS_CONTROL,
    MgpExtension.TOOL_DISCOVERY,
}
"""The extensions at the endpoint of a view. The others are about the whole gateway."""

SERVER_EXTENSIONS: Final[frozenset[str]] = frozenset(
    {
        MgpExtension.LIFECYCLE,
        MgpExtension.SECURITY,
        MgpExtension.AUDIT,
        MgpExtension.STREAMING,
        MgpExtension.BIDIRECTIONAL,
    }
)
"""The extensions that the gateway uses with a server, in the role of a client."""

_MENTION: Final = b"mgp"
_EMPTY_OBJECT: Final = Raw(b"{}")
_SEMVER: Final = re.compile(r"(\d{1,6})\.(\d{1,6})(\.\d{1,6})?([-+][0-9A-Za-z.+-]{0,64})?")


@dataclass(frozen=True, slots=True)
class NegotiatedTerms:
    """The negotiated terms: the version of the peer, and the extensions of both."""

    version: str
    extensions: frozenset[str]


def offer_extensions(
    extensions: Iterable[str], more: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return the wire form of offered or negotiated extensions."""
    return {"version": VERSION, "extensions": sorted(extensions), **(more or {})}


def negotiate_terms(said: MgpStatement | None, offered: frozenset[str]) -> NegotiatedTerms | None:
    """Return the terms that a declaration and the offered extensions share; None for plain MCP."""
    if said is None or _major(said.version) != _major(VERSION):
        return None
    return NegotiatedTerms(said.version, said.extensions & offered)


def of_request(
    params: Raw | UnsetType, extensions: frozenset[str] = CLIENT_EXTENSIONS
) -> NegotiatedTerms | None:
    """Return the terms of a modern request, whose metadata declares its client."""
    try:
        found = {} if params is UNSET else jsonrpc.decode_members(params)
        meta = jsonrpc.decode_members(found["_meta"]) if "_meta" in found else {}
    except MalformedMessage:
        return None
    return negotiate_terms(decode_statement(meta.get(CLIENT_CAPABILITIES)), extensions)


def strip_mgp_request(frame: Frame) -> Frame:
    """Return a modern request without MGP, since its client negotiated it with the gateway."""
    if frame.params is UNSET or _MENTION not in bytes(frame.params):
        return frame
    params = jsonrpc.decode_members(frame.params)
    meta = jsonrpc.decode_members(params.get("_meta", _EMPTY_OBJECT))
    capabilities = jsonrpc.decode_members(meta.get(CLIENT_CAPABILITIES, _EMPTY_OBJECT))
    plain = strip_mgp_capabilities(capabilities)
    if plain == capabilities:
        return frame
    said = {**meta, CLIENT_CAPABILITIES: plain}
    return jsonrpc.with_params(frame, jsonrpc.to_raw({**params, "_meta": said}))


def version_remark(said: MgpStatement | None) -> str | None:
    """Return a remark about a version that differs from Comity's, or None."""
    if said is None or _minor(said.version) == _minor(VERSION):
        return None
    if _major(said.version) == _major(VERSION):
        return f"speaks MGP {said.version:.40}, which may differ from {VERSION} in details"
    return f"speaks MGP {said.version:.40} and not {VERSION}: the connection is plain MCP"


def _major(version: str) -> int | None:
    found = _SEMVER.fullmatch(version)
    return None if found is None else int(found[1])


def _minor(version: str) -> tuple[int, int] | None:
    found = _SEMVER.fullmatch(version)
    return None if found is None else (int(found[1]), int(found[2]))


HEALTH_PING: Final = "mgp/health/ping"
HEALTH_STATUS: Final = "mgp/health/status"
SHUTDOWN: Final = "mgp/lifecycle/shutdown"
CHANGED: Final = "notifications/mgp.lifecycle"


class ServerLifecycleState(StrEnum):
    REGISTERED = "registered"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    DRAINING = "draining"
    DISCONNECTED = "disconnected"
    ERROR = "error"
    RESTARTING = "restarting"


class HealthStatus(StrEnum):
    """The health that a server reports. (MGP §11.3)"""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


class ShutdownReason(StrEnum):
    """The reason of a shutdown request. (MGP §11.4)"""

    OPERATOR_REQUEST = "operator_request"
    CONFIGURATION_CHANGE = "configuration_change"
    RESOURCE_LIMIT = "resource_limit"
    IDLE_TIMEOUT = "idle_timeout"
    KERNEL_SHUTDOWN = "kernel_shutdown"


class RestartPolicy(StrEnum):
    """When a server is restarted after its end. (MGP §11.5)"""

    NEVER = "never"
    ON_FAILURE = "on_failure"
    ALWAYS = "always"


def shutdown_in(params: Mapping[str, Raw]) -> ShutdownReason:
    """Return the reason of a shutdown request. Raises MalformedMessage. (MGP §11.4)"""
    said = jsonrpc.decode_text(params.get("reason"))
    if said not in set(ShutdownReason):
        known = ", ".join(ShutdownReason)
        raise MalformedMessage(f"reason is one of {known}", INVALID_PARAMS)
    return ShutdownReason(str(said))


def format_timestamp(at: datetime) -> str:
    """Return a time in the format of MGP."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def state_change_notification(
    server: str,
    previous: ServerLifecycleState,
    state: ServerLifecycleState,
    reason: str,
    at: datetime,
) -> Frame:
    """Return the notification of a state change of a server. (MGP §11.4)"""
    told = {
        "server_id": server,
        "previous_state": previous,
        "new_state": state,
        "reason": reason,
        "timestamp": format_timestamp(at),
    }
    return jsonrpc.make_notification(CHANGED, told)


CALLBACK_REQUEST: Final = "notifications/mgp.callback.request"
