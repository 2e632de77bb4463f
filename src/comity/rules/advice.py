"""Where each fault comes from, and what whoever meets it can do next. (REG `suggestions`)

The reference of errors is written from these words, and so is what a program or a model is told
where nobody knows better.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from comity.wire import errors
from comity.wire.errors import Fault


@dataclass(frozen=True, slots=True)
class Advice:
    """What leads to a fault, and what to do about it: the best first."""

    cause: str
    suggestions: tuple[str, ...]


_PROTOCOL: Final[Mapping[Fault, Advice]] = {
    errors.PARSE_ERROR: Advice(
        "The message is no JSON, is nested too deeply, or names a member twice.",
        ("Send one JSON-RPC 2.0 message in UTF-8, without repeated members.",),
    ),
    errors.INVALID_REQUEST: Advice(
        "The JSON is no request that can be taken here.",
        ("Compare the message with JSON-RPC 2.0 and with the transport's rules.",),
    ),
    errors.METHOD_NOT_FOUND: Advice(
        "Nobody behind this door knows the method.",
        ("Use a method that was negotiated.", "Use the server's own endpoint for its own methods."),
    ),
    errors.INVALID_PARAMS: Advice(
        "The parameters of a method other than a tool's own arguments are wrong.",
        ("Correct the parameter that the reason names.",),
    ),
    errors.INTERNAL_ERROR: Advice(
        "A bug of the gateway's.",
        ("Tell the operator the trace id; the log has the details.",),
    ),
    errors.RESOURCE_NOT_FOUND: Advice(
        "No server that the caller may use has a resource at this URI.",
        ("List the resources again.",),
    ),
    errors.URL_ELICITATION_REQUIRED: Advice(
        "The server wants a person to open a page first.",
        ("Open the URL that the error names, then call again.",),
    ),
    errors.HEADER_MISMATCH: Advice(
        "A header of a modern request says something else than its body.",
        ("Repeat in the headers exactly what the body says.",),
    ),
    errors.MISSING_CAPABILITY: Advice(
        "The server needs to ask something that this client did not declare it can be asked.",
        ("Declare the capability that the reason names.",),
    ),
    errors.UNSUPPORTED_VERSION: Advice(
        "The request is of a version of MCP that is not spoken here.",
        ("Use one of the versions that the error lists.",),
    ),
    errors.EVENT_NOT_FOUND: Advice(
        "There is no such event, or no such subscription of the caller's.",
        ("List what there is with events/list.",),
    ),
    errors.EVENTS_FORBIDDEN: Advice(
        "The caller has no grant to have events posted there.",
        ("Ask the operator: comity grants add PARTY webhooks/HOST --verb events/subscribe.",),
    ),
    errors.MODE_UNSUPPORTED: Advice(
        "Events are not told in this way by this method.",
        ("Use one of the ways that events/list names, with the method that it has.",),
    ),
    errors.CALLBACK_FAILED: Advice(
        "The place that events were to be posted to did not show that it wants them.",
        ("Have it answer a post of type verification with 200 and the challenge.",),
    ),
}
_AUTHORITY: Final[Mapping[Fault, Advice]] = {
    errors.UNAUTHENTICATED: Advice(
        "The request came without credentials, or with some that nobody here knows.",
        (
            "Send a key or a token in the Authorization header.",
            "Ask the operator for a key: comity keys create.",
        ),
    ),
    errors.CREDENTIAL_EXPIRED: Advice(
        "The key or token was good once.",
        ("Refresh the token.", "Ask the operator for a new key."),
    ),
    errors.PERMISSION_DENIED: Advice(
        "The tool's server lacks a permission that the tool needs.",
        ("Use another tool.", "Ask the operator to grant the server the permission."),
    ),
    errors.APPROVAL_REQUIRED: Advice(
        "A person has to agree to this call, and did not yet.",
        ("Ask the operator to approve it or to grant the tool itself.",),
    ),
    errors.PENDING_APPROVAL: Advice(
        "A person was asked whether this call may run, and has not answered yet.",
        ("Make exactly the same call again: once it is approved, it runs, and only once.",),
    ),
    errors.DECLINED: Advice(
        "A person was asked and said no.",
        ("Do not repeat the call; ask the person what to do instead.",),
    ),
    errors.ACCESS_DENIED: Advice(
        "No grant lets the caller use anything of that name; whether it exists is not told.",
        (
            "List the tools: what is listed can be called.",
            "Ask the operator for a grant: comity grants explain says what decides.",
        ),
    ),
    errors.VALIDATION_BLOCKED: Advice(
        "A validator of the gateway's found the arguments unsafe.",
        ("Change the argument that the reason names.", "Use a tool made for this purpose."),
    ),
    errors.CODE_UNSAFE: Advice(
        "The code that the tool was to run is not allowed at its level of safety.",
        ("Rewrite the code without what the violations name.",),
    ),
}
_RESOURCES: Final[Mapping[Fault, Advice]] = {
    errors.RATE_LIMITED: Advice(
        "Too many calls in a short time, of the caller, its key, the tool or the server.",
        ("Wait as long as retry_after_ms says, then call again.", "Make fewer calls."),
    ),
    errors.QUOTA_EXCEEDED: Advice(
        "All calls of this day or month are used up.",
        ("Wait until the quota renews.", "Ask the operator for a larger quota."),
    ),
    errors.EXHAUSTED: Advice(
        "The gateway or a server has as much to do as it can take.",
        ("Call again later, with longer and longer pauses.",),
    ),
    errors.TIMEOUT: Advice(
        "The server took the call and did not answer before the deadline.",
        (
            "Check whether the tool has run before you call it again.",
            "Break the request into smaller parts.",
            "Ask the operator for a longer deadline.",
        ),
    ),
    errors.SERVER_NOT_READY: Advice(
        "The tool's server is starting, or the gateway cannot reach it yet.",
        ("Call again in a moment.",),
    ),
    errors.SERVER_DRAINING: Advice(
        "The tool's server finishes what it has begun and takes nothing new.",
        ("Call again when it is back.", "Use another tool."),
    ),
    errors.SERVER_RESTARTING: Advice(
        "The tool's server is being started again.", ("Call again in a moment.",)
    ),
    errors.SERVER_STOPPED: Advice(
        "The tool's server was stopped, or was started in vain too often.",
        ("Use another tool.", "Ask the operator to start it: comity servers start."),
    ),
    errors.POLICY_UNKNOWN: Advice(
        "The gateway cannot read its grants just now, and so allows nothing.",
        ("Call again in a moment.",),
    ),
    errors.JOURNAL_AWAY: Advice(
        "The gateway cannot write its journal just now, and so does nothing that must stand there.",
        ("Call again in a moment.",),
    ),
    errors.CUT_OFF: Advice(
        "This node cannot reach the other nodes just now, and what was asked for needs them.",
        (
            "Call again in a moment; another node may answer at once.",
            "Operators: `/ready` says of each node whether it is cut off.",
        ),
    ),
}
_TOOLS: Final[Mapping[Fault, Advice]] = {
    errors.INVALID_TOOL_ARGS: Advice(
        "The arguments do not fit the tool's schema.",
        ("Correct the field that the reason names, and call again.",),
    ),
    errors.TOOL_NOT_FOUND: Advice(
        "No server has a tool of that name.", ("List the tools again and use a listed name.",)
    ),
    errors.TOOL_DISABLED: Advice(
        "The tool has changed since it was accepted, or was switched off.",
        ("Use another tool.", "Ask the operator to look at the tool and accept it."),
    ),
    errors.UPSTREAM_FAILED: Advice(
        "The tool's server broke off, died or sent something broken.",
        ("Check whether the tool has run before you call it again.", "Use another tool."),
    ),
    errors.UPSTREAM_SLOW: Advice(
        "The tool's server, or what stands before it, did not answer in time.",
        ("Check whether the tool has run before you call it again.",),
    ),
    errors.UPSTREAM_DOWN: Advice(
        "The tool's server cannot be reached; the call never got there.",
        ("Call again in a moment.", "Use another tool."),
    ),
    errors.INTERRUPTED: Advice(
        "The gateway is shutting down, and the call was not answered before.",
        ("Check whether the tool has run before you call it again.", "Connect again."),
    ),
}
_DOOR: Final[Mapping[Fault, Advice]] = {
    errors.HOST_REFUSED: Advice(
        "The Host header names somebody else.", ("Add the name to allowed_hosts.",)
    ),
    errors.ORIGIN_REFUSED: Advice(
        "A web page of another origin called.", ("Add its origin to allowed_origins.",)
    ),
    errors.BODY_TOO_LARGE: Advice("The body is longer than limits.frame_bytes.", ("Send less.",)),
    errors.BODY_TOO_SLOW: Advice("The body did not arrive in time.", ("Send it again, faster.",)),
    errors.WRONG_CONTENT_TYPE: Advice(
        "The body is not declared as JSON.", ("Send content-type: application/json.",)
    ),
    errors.NOT_ACCEPTABLE: Advice(
        "The Accept header leaves nothing that could be answered.",
        ("Accept application/json and text/event-stream.",),
    ),
    errors.SESSION_UNKNOWN: Advice(
        "The session has ended, or was never here.", ("Begin again with initialize.",)
    ),
    errors.SCOPE_MISSING: Advice(
        "The token is good, and lacks the scope that this door asks for.",
        ("Ask for a token with the scope that the WWW-Authenticate header names.",),
    ),
    errors.OPERATORS_ONLY: Advice(
        "This door is for operators.", ("Use a credential with admin grants.",)
    ),
    errors.JOINING_REFUSED: Advice(
        "The topic is for those who were granted something in it.",
        ("Ask an operator for a capability there: comity topic caps TOPIC PARTY --add chat.",),
    ),
    errors.NOTHING_HERE: Advice("The path leads nowhere.", ("Use /mcp or /servers/{id}/mcp.",)),
}
_MODELS: Final[Mapping[Fault, Advice]] = {
    errors.BUDGET_EXCEEDED: Advice(
        "All that may be spent on models today is spent, or would be.",
        ("Wait until the next day (UTC).", "Ask for less: a shorter prompt, fewer tokens."),
    ),
    errors.MODEL_REFUSED: Advice(
        "The model does not take this, or gave what is no reply.",
        ("Ask for something else, or for less.", "Ask the operator: comity models try ID TEXT."),
    ),
    errors.NO_MODEL: Advice(
        "There is no model for this.",
        ("Ask the operator for one in [[models]], or for a route to it.",),
    ),
    errors.HOOK_LOOP: Advice(
        "A model was asked for from within a hook of the same server.",
        ("Ask for it after the hook was answered.",),
    ),
}
_MCPL: Final[Mapping[Fault, Advice]] = {
    errors.FEATURE_NOT_ENABLED: Advice(
        "The feature set is declared and not switched on.", ("Wait for featureSets/update.",)
    ),
    errors.FEATURE_UNKNOWN: Advice(
        "The feature set was never declared.", ("Declare it in initialize.",)
    ),
    errors.CHECKPOINT_UNKNOWN: Advice(
        "There is no such checkpoint.", ("Use one that state/rollback can still reach.",)
    ),
    errors.SCOPE_NOT_PERMITTED: Advice(
        "The scope or channel is outside of what was granted.", ("Use another one, or ask for it.",)
    ),
    errors.CHANNEL_UNKNOWN: Advice("There is no such channel.", ("List the channels again.",)),
    errors.CHANNEL_NOT_OPENED: Advice(
        "The channel could not be opened.", ("Try again later, or use another one.",)
    ),
}

ADVICE: Final[Mapping[Fault, Advice]] = (
    dict(_PROTOCOL) | _AUTHORITY | _RESOURCES | _TOOLS | _DOOR | _MODELS | _MCPL
)


def suggestions_for(fault: Fault) -> tuple[str, ...]:
    """What can be done next about a fault of which nothing more is known."""
    found = ADVICE.get(fault)
    return () if found is None else found.suggestions
