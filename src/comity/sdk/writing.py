"""What a participant sends: each envelope whole, true to its kind, and allowed. (MCPx §3, §8.2)

Rule 1: nothing is sent that the gateway's own reader would not take.
Rule 2: a proposal begins something and refers to nothing; a fulfilment refers to its proposal; a
        response to the request, and goes to whoever proposed that too. (§3.2.1, D-39, D-45)
Rule 3: what the welcome does not allow is not tried, and the error says what to do instead. (§8.2)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import msgspec

from comity.rules.capabilities import Capabilities
from comity.rules.kinds import Kind, is_reserved, of_payload
from comity.rules.topics import LATER_KINDS
from comity.sdk.events import Payload, Request
from comity.wire import envelope as wire
from comity.wire.envelope import Envelope, Heading
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.jsonrpc import Id

JSONRPC: Final = "2.0"

type Recipients = str | Iterable[str] | None


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be said, to whom, and with regard to what."""

    kind: str
    payload: Payload
    to: tuple[str, ...] = ()
    correlation_id: str = ""


def recipients(to: Recipients) -> tuple[str, ...]:
    if to is None:
        return ()
    return (to,) if isinstance(to, str) else tuple(dict.fromkeys(to))


def chat(text: str, to: Recipients = None, form: str = "plain", reply_to: str = "") -> Draft:
    return Draft(wire.CHAT, {"text": text, "format": form}, recipients(to), reply_to)


def request(
    method: str, params: Payload, rpc_id: Id | None, to: Recipients, fulfils: str = ""
) -> Draft:
    """A request; a notification where it has no id."""
    payload: dict[str, object] = {"jsonrpc": JSONRPC, "method": method, "params": params}
    if rpc_id is not None:
        payload["id"] = rpc_id
    return Draft(kind_of(wire.REQUEST, method, params), payload, recipients(to), fulfils)


def proposal(method: str, params: Payload, to: Recipients) -> Draft:
    payload = {"method": method, "params": params}
    return Draft(kind_of(wire.PROPOSAL, method, params), payload, recipients(to))


def response(asked: Request, body: Mapping[str, object], proposer: str = "") -> Draft:
    """The answer to a request: `body` has its result or its error."""
    kind = str(asked.kind._replace(family=wire.RESPONSE))
    payload = {"jsonrpc": JSONRPC, "id": asked.rpc_id, **body}
    to = (asked.sender, proposer) if proposer else (asked.sender,)
    return Draft(kind, payload, recipients(to), asked.id)


def kind_of(family: str, method: str, params: Payload) -> str:
    """The kind of a request or proposal; without a context that no kind can hold."""
    if not method or ":" in method:
        raise MalformedMessage(f"{method!r:.80} is no method: name one as tools/call")
    found = of_payload(family, {"method": method, "params": dict(params)})
    can_be_held = found.context.isascii() and found.context.isprintable()
    if not can_be_held or " " in found.context or len(str(found)) > wire.LIMITS.kind_characters:
        found = Kind(family, method)
    return str(found)


def why_not(kind: str, may: Capabilities, *, has_later_kinds: bool) -> Exception | None:
    """Why we do not even try to send a kind."""
    if is_reserved(kind):
        return MalformedMessage(f"{kind!r:.80} is the gateway's own; send a chat or an mcp/ kind")
    if kind in LATER_KINDS and not has_later_kinds:
        return PermissionError(
            f"{kind} is no kind of {wire.PROTOCOL}: where the topic allows it, join with "
            "Options(has_later_kinds=True)"
        )
    if may.cover(kind):
        return None
    other = f"{wire.PROPOSAL}{kind.removeprefix(wire.REQUEST)}"
    if kind.startswith(f"{wire.REQUEST}:") and may.cover(other):
        advice = "propose it instead, or let request() do so"
    else:
        advice = "ask an operator of the topic to grant it"
    return PermissionError(f"you lack the capability for {kind!r:.200}: {advice}")


def sealed(draft: Draft, sender: str) -> tuple[Envelope, bytes]:
    """The envelope and its bytes, read once as others will. Raises MalformedMessage."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    heading = Heading(str(uuid4()), now, draft.to, draft.correlation_id)
    try:
        data = wire.encode(wire.written(heading, sender, draft.kind, draft.payload))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        because = f"this cannot be said in JSON: {error}"
        raise MalformedMessage(because, INVALID_PARAMS) from None
    return wire.decode(data), data
