"""Methods, versions and headers of both MCP protocol versions, and public tool names."""

import base64
import hashlib
import re
from enum import StrEnum
from typing import Final

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LATEST_HANDSHAKE: Final = HANDSHAKE_VERSIONS[-1]
MODERN_VERSIONS: Final = ("2026-07-28",)
LATEST_MODERN: Final = MODERN_VERSIONS[-1]
UNSTATED_VERSION: Final = "2025-03-26"
"""The version of a client without the version header, by the specification."""


class Era(StrEnum):
    HANDSHAKE = "handshake"
    MODERN = "modern"

    @property
    def latest_version(self) -> str:
        return LATEST_MODERN if self is Era.MODERN else LATEST_HANDSHAKE


type Stream = int | None
"""The stream of a message, named by the id of the request that opened it."""

STANDALONE: Final = 0
"""The stream that no request opened."""

UNKNOWN: Final = None
"""The stream of a transport with one stream for all messages, such as stdio."""

INITIALIZE: Final = "initialize"
DISCOVER: Final = "server/discover"
PING: Final = "ping"
LISTEN: Final = "subscriptions/listen"
CALL_TOOL: Final = "tools/call"
GET_PROMPT: Final = "prompts/get"
READ_RESOURCE: Final = "resources/read"
SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"
COMPLETE: Final = "completion/complete"
SET_LEVEL: Final = "logging/setLevel"
LIST_TOOLS: Final = "tools/list"
LIST_RESOURCES: Final = "resources/list"
LIST_TEMPLATES: Final = "resources/templates/list"
LIST_PROMPTS: Final = "prompts/list"
SAMPLE: Final = "sampling/createMessage"
ELICIT: Final = "elicitation/create"
LIST_ROOTS: Final = "roots/list"

INITIALIZED: Final = "notifications/initialized"
PROGRESS: Final = "notifications/progress"
CANCELLED: Final = "notifications/cancelled"
MESSAGE: Final = "notifications/message"
RESOURCE_UPDATED: Final = "notifications/resources/updated"
TOOLS_CHANGED: Final = "notifications/tools/list_changed"
RESOURCES_CHANGED: Final = "notifications/resources/list_changed"
PROMPTS_CHANGED: Final = "notifications/prompts/list_changed"
ROOTS_CHANGED: Final = "notifications/roots/list_changed"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
ELICITED: Final = "notifications/elicitation/complete"

LIST_CHANGES: Final = frozenset({TOOLS_CHANGED, RESOURCES_CHANGED, PROMPTS_CHANGED})
CHANGE_NOTIFICATION_OF: Final = {
    "tools": TOOLS_CHANGED,
    "resources": RESOURCES_CHANGED,
    "prompts": PROMPTS_CHANGED,
}
"""The notification of a changed list, by the capability that a server declares."""

NAME_PARAM_OF: Final = {CALL_TOOL: "name", GET_PROMPT: "name", READ_RESOURCE: "uri"}
"""The parameter that the `Mcp-Name` header repeats."""

CLIENT_CAPABILITY: Final = {SAMPLE: "sampling", ELICIT: "elicitation", LIST_ROOTS: "roots"}
"""The capability that a client must declare to receive this request. (MCP §5.4 to §5.6)"""

SERVER_CAPABILITY: Final = {
    LIST_TOOLS: "tools",
    LIST_RESOURCES: "resources",
    LIST_TEMPLATES: "resources",
    LIST_PROMPTS: "prompts",
}
"""The capability that a server must declare to receive this request."""

_PREFIX: Final = "io.modelcontextprotocol/"
PROTOCOL_VERSION: Final = _PREFIX + "protocolVersion"
CLIENT_CAPABILITIES: Final = _PREFIX + "clientCapabilities"
CLIENT_INFO: Final = _PREFIX + "clientInfo"
SERVER_INFO: Final = _PREFIX + "serverInfo"
LOG_LEVEL: Final = _PREFIX + "logLevel"
SUBSCRIPTION_ID: Final = _PREFIX + "subscriptionId"

VERSION_HEADER: Final = b"mcp-protocol-version"
METHOD_HEADER: Final = b"mcp-method"
NAME_HEADER: Final = b"mcp-name"
PARAM_HEADER_PREFIX: Final = b"mcp-param-"
SESSION_HEADER: Final = b"mcp-session-id"
LAST_EVENT_HEADER: Final = b"last-event-id"

COMPLETE_RESULT: Final = "complete"
INPUT_REQUIRED: Final = "input_required"

LOG_LEVELS: Final = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)


_SAFE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_WRAPPED: Final = re.compile(r"=\?base64\?(.*)\?=")


def encode_header_value(value: str) -> bytes:
    """Encode a value for a header."""
    if (value == "" or _SAFE.fullmatch(value)) and not _WRAPPED.fullmatch(value):
        return value.encode()
    return b"=?base64?%b?=" % base64.b64encode(value.encode())


def decode_header_value(header: bytes) -> str | None:
    """Decode a header, or return None if it is malformed."""
    value = header.strip(b" \t").decode("latin-1")
    wrapped = _WRAPPED.fullmatch(value)
    if wrapped is None:
        return value
    try:
        plain = base64.b64decode(wrapped[1], validate=True)
        return plain.decode() if base64.b64encode(plain).decode() == wrapped[1] else None
    except ValueError:
        return None


MAX_LENGTH: Final = 64
SEPARATOR: Final = "__"
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")
_MARK_LENGTH: Final = 12
_MARKED: Final = re.compile(r"_[0-9a-f]{12}\Z")


def public_name(server: str, name: str) -> str:
    """Return `server__name`, with `_` for each character of the id that names cannot have.

    The name ends in a digest if its text alone could mean another name or another server. Two ids
    may still have one prefix, as `a.b` and `a_b`: only who knows all servers can tell, and gives
    these servers marked names.
    """
    prefix = public_prefix(server)
    plain = f"{prefix}{SEPARATOR}{name}"
    is_unique = plain.find(SEPARATOR) == len(prefix) and not _MARKED.search(plain)
    if len(plain) <= MAX_LENGTH and is_unique and not _UNFIT.search(name):
        return plain
    return marked_name(server, name)


def marked_name(server: str, name: str) -> str:
    """Return the public name that ends in a digest of the server and the name."""
    fitting = _UNFIT.sub("_", f"{server}{SEPARATOR}{name}")
    # The length of the server's name prevents confusion by a separator inside of it.
    told = f"{len(server)}:{server}{name}".encode("utf-8", "surrogatepass")
    mark = hashlib.sha256(told).hexdigest()[:_MARK_LENGTH]
    return f"{fitting[: MAX_LENGTH - _MARK_LENGTH - 1]}_{mark}"


def public_prefix(server: str) -> str:
    """Return the part before the separator in the public names of a server."""
    return _UNFIT.sub("_", server)


def is_written_name(text: str) -> bool:
    """Return whether a text has a character that no public name has."""
    return _UNFIT.search(text) is not None


_SERVER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def is_id(text: str) -> bool:
    """Return whether a text is a valid server id."""
    return bool(_SERVER_ID.fullmatch(text)) and "__" not in text and not text.endswith("_")


def derived_id(label: str) -> str:
    """Return a server id for a name in `mcpServers`, which may be any text."""
    if is_id(label):
        return label
    plain = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_.-]+", "-", label))
    derived = plain.lstrip("_.-")[:64].rstrip("_.-")
    return derived or "server-" + hashlib.sha256(label.encode(errors="replace")).hexdigest()[:8]
