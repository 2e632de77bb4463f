"""Questions across the eras: a request in the handshake era, a round of the call in the modern.

Rule 1: a handshake server asks by a request and gets a response; a modern one gives the result
        `input_required` and gets the call once more, with the answers. The keys are the asker's.
Rule 2: a client is asked only what it said it can be asked, down to the mode of an elicitation.
Rule 3: a round holds a bounded number of questions. (2026-07-28 sets no bound)
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw

from comity.rules import tasks
from comity.rules.eras import ROUND, meta_of, without
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    INVALID_PARAMS,
    UPSTREAM_FAILED,
    URL_ELICITATION_REQUIRED,
    MalformedMessage,
)
from comity.wire.jsonrpc import UNSET, Frame, Id

MOST_REQUESTS: Final = 32
ACCEPTED: Final = "accept"

_NOTHING: Final = Raw(b"{}")
_pages = msgspec.json.Decoder(list[Raw])


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a modern server wants to know before it goes on."""

    requests: Mapping[str, tuple[str, Raw]]
    state: Raw | None


def unaskable(capabilities: Mapping[str, Raw], method: str, params: Raw) -> str | None:
    """Why a client with these capabilities cannot be asked this; None where it can."""
    needed = mcp.CLIENT_CAPABILITY.get(method)
    if needed is None:
        return f"no client is asked {method:.80} in this era"
    declared, asked = _declared(capabilities.get(needed)), jsonrpc.members(params)
    if declared is None:
        return f"this client did not declare {needed}"
    if method == mcp.ELICIT:
        mode = jsonrpc.text(asked.get("mode")) or "form"
        # An empty declaration is that of a client from before there were modes.
        return None if mode in (declared or {"form"}) else f"this client has no {mode:.80} mode"
    if method == mcp.SAMPLE and not asked.keys().isdisjoint({"tools", "toolChoice"}):
        return None if "tools" in declared else "this client did not declare sampling.tools"
    return None


def _declared(terms: Raw | None) -> dict[str, Raw] | None:
    try:
        return None if terms is None else jsonrpc.members(terms)
    except MalformedMessage:
        return None


# A handshake server asks a modern client.


def round_in(frame: Frame) -> tuple[Mapping[str, Raw], str | None]:
    """The answers that a repeated request brings, and the state it was given to bring back."""
    params = jsonrpc.params_of(frame)
    said = {name: params[name] for name in ROUND & params.keys() if bytes(params[name]) != b"null"}
    if not said:
        return {}, None
    state = jsonrpc.text(said.get("requestState"))
    if state is None:
        # Without its state it would be a new call, which runs anew and asks anew.
        raise MalformedMessage("answers need the requestState of their question", INVALID_PARAMS)
    return jsonrpc.members(said.get("inputResponses", _NOTHING)), state


def digest(server: str, frame: Frame, party: str = "") -> bytes:
    """What a request asks for, of whom, and who asks; whatever its id, its envelope, its round."""
    params = without(jsonrpc.params_of(frame), ROUND | {"_meta", "task"})
    asked = {name: jsonrpc.value(value) for name, value in params.items()}
    whole = [server, str(frame.method), asked, party]
    return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).digest()


def embedded(frame: Frame) -> dict[str, object]:
    """A handshake server's question as it stands in a modern result."""
    params = jsonrpc.params_of(frame)
    plain: dict[str, object] = {**without(params, {"_meta", "task", "elicitationId"})}
    meta = without(meta_of(params), {"progressToken", tasks.RELATED})
    if meta:
        plain["_meta"] = meta
    asked: dict[str, object] = {"method": frame.method}
    return {**asked, "params": plain} if plain else asked


def input_required(questions: Mapping[str, object], state: str) -> dict[str, object]:
    """A handshake server's questions as the modern era asks them."""
    return {
        "resultType": mcp.INPUT_REQUIRED,
        "inputRequests": questions,
        "requestState": state,
    }


def answer_to(asker_id: Id, response: Raw) -> Frame:
    """A modern client's answer as a handshake server awaits it."""
    found = jsonrpc.members(response)
    return jsonrpc.result(asker_id, without(found, {"resultType"}))


def pages_in(frame: Frame) -> list[Raw]:
    """The pages a handshake server wants a person to visit before it does what was asked.

    It says so by an error, which the modern era has retired: there, this is a round too.
    """
    error = jsonrpc.error_of(frame)
    if error is None or error.code != URL_ELICITATION_REQUIRED.code or frame.error is UNSET:
        return []
    try:
        data = jsonrpc.members(jsonrpc.members(frame.error).get("data", _NOTHING))
        found = _pages.decode(data.get("elicitations", b"[]"))
        pages = [jsonrpc.to_raw({**jsonrpc.members(page), "mode": "url"}) for page in found]
    except (MalformedMessage, msgspec.DecodeError, UnicodeDecodeError):
        return []
    return pages if len(pages) <= MOST_REQUESTS else []


def is_accepted(answer: Frame) -> bool:
    """Whether a person agreed to what was asked."""
    if answer.result is UNSET:
        return False
    return jsonrpc.text(jsonrpc.members(answer.result).get("action")) == ACCEPTED


# A modern server asks a handshake client.


def wanted_in(frame: Frame) -> Wanted | None:
    """What a modern server wants to know first; None where this is its answer."""
    if frame.result is UNSET or mcp.INPUT_REQUIRED.encode() not in bytes(frame.result):
        return None
    found = jsonrpc.members(frame.result)
    if jsonrpc.text(found.get("resultType")) != mcp.INPUT_REQUIRED:
        return None
    requests, state = (
        jsonrpc.members(found.get("inputRequests", _NOTHING)),
        found.get("requestState"),
    )
    if state is not None and jsonrpc.text(state) is None:
        raise MalformedMessage("requestState is a string", UPSTREAM_FAILED)
    if not requests and state is None:
        raise MalformedMessage("the server wants input but does not say which", UPSTREAM_FAILED)
    if len(requests) > MOST_REQUESTS:
        raise MalformedMessage("the server asks too much at once", UPSTREAM_FAILED)
    return Wanted({key: _input_request(raw) for key, raw in requests.items()}, state)


def _input_request(raw: Raw) -> tuple[str, Raw]:
    found = jsonrpc.members(raw)
    method = jsonrpc.text(found.get("method"))
    if method not in mcp.CLIENT_CAPABILITY:
        raise MalformedMessage(f"no client can be asked {method!r:.80}", UPSTREAM_FAILED)
    params = found.get("params", _NOTHING)
    jsonrpc.members(params)
    return method, params


def handshake_question(key: str, method: str, params: Raw, name: str) -> Frame:
    """A modern server's question as a request; what is asked by a page needs a name there."""
    found = jsonrpc.members(params)
    if method == mcp.ELICIT and jsonrpc.text(found.get("mode")) == "url":
        params = jsonrpc.to_raw({"elicitationId": name, **found})
    return jsonrpc.request(key, method, params)


def repeated(frame: Frame, responses: Mapping[str, object], state: Raw | None) -> Frame:
    """The request once more, with the answers to what its server wanted to know."""
    params: dict[str, object] = {**jsonrpc.params_of(frame)}
    if responses:
        params["inputResponses"] = responses
    if state is not None:
        params["requestState"] = state
    return jsonrpc.with_params(frame, jsonrpc.to_raw(params))


def response_to(method: str, answer: Frame) -> object | None:
    """A client's answer as a repeated request brings it; None where it is not one."""
    if answer.result is not UNSET:
        return answer.result
    # Only an elicitation can be answered by saying that there is no answer.
    return {"action": "cancel"} if method == mcp.ELICIT else None


def lacking(capabilities: Mapping[str, Raw], wanted: Wanted) -> str | None:
    """Why a client cannot be asked all that a modern server wants to know."""
    reasons = (unaskable(capabilities, *asked) for asked in wanted.requests.values())
    return next((reason for reason in reasons if reason is not None), None)
