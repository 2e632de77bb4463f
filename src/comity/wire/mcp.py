"""The words of MCP in both of its eras: versions, methods, headers, keys. (MCP §3 to §5)

The handshake era (2024-11-05 to 2025-11-25) opens with `initialize` and keeps a session; the modern
era (2026-07-28) has neither: each request carries its envelope in `params._meta`.
"""

from enum import StrEnum
from typing import Final

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LATEST_HANDSHAKE: Final = HANDSHAKE_VERSIONS[-1]
MODERN_VERSIONS: Final = ("2026-07-28",)
LATEST_MODERN: Final = MODERN_VERSIONS[-1]
UNSTATED_VERSION: Final = "2025-03-26"
"""What a client without the version header speaks, by the specification."""


class Era(StrEnum):
    HANDSHAKE = "handshake"
    MODERN = "modern"


type Stream = int | None
"""Which stream a message came on: named by the id of the question that opened it."""

STANDALONE: Final = 0
"""The stream that no question opened."""

UNKNOWN: Final = None
"""A carrier with one stream for all, as stdio is."""

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
CHANGE_OF: Final = {
    "tools": TOOLS_CHANGED,
    "resources": RESOURCES_CHANGED,
    "prompts": PROMPTS_CHANGED,
}
"""By the capability that a server declares: what tells that its list has changed."""

NAMED_BY: Final = {CALL_TOOL: "name", GET_PROMPT: "name", READ_RESOURCE: "uri"}
"""Which parameter the `Mcp-Name` header repeats."""

CLIENT_CAPABILITY: Final = {SAMPLE: "sampling", ELICIT: "elicitation", LIST_ROOTS: "roots"}
"""What a client must have declared to be asked this. (MCP §5.4 to §5.6)"""

SERVER_CAPABILITY: Final = {
    LIST_TOOLS: "tools",
    LIST_RESOURCES: "resources",
    LIST_TEMPLATES: "resources",
    LIST_PROMPTS: "prompts",
}
"""What a server must have declared to be asked this."""

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
