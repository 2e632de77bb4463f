"""The operator API for live servers, and the endpoint of inbound webhooks."""

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Protocol

from msgspec import Meta, Raw, field

from comity.audit.events import AuditResult, AuditType
from comity.errors import (
    ACCESS_DENIED,
    CHECKPOINT_UNKNOWN,
    INVALID_PARAMS,
    NOTHING_HERE,
    SERVER_NOT_READY,
    MalformedMessage,
    Unavailable,
)
from comity.http import asgi
from comity.http.api import ApiHandler, ApiRequest, ApiRoute, ApiRoutes, Permission, View
from comity.http.api_input import (
    EmptyBody,
    EmptyQuery,
    NonEmptyText,
    RequestBody,
    RequestQuery,
    ServerQuery,
    ShortText,
)
from comity.http.asgi import HOOKS, HeaderList, Receive, Scope, Send
from comity.inference.messages import Content, content_in, text_of, to_text_content
from comity.live.audit import LiveAuditEntry, record_entry
from comity.live.channels.model import OutputTarget
from comity.live.channels.outgoing_messages import OutgoingMessage, OutputRouter
from comity.live.channels.service import ChannelStatus
from comity.live.features import UNDECIDED, WHOLE
from comity.live.host import LiveHost, LiveServer
from comity.live.pushes.model import PUSH_PAGE, PushStore, StoredPush
from comity.live.pushes.service import InboundWebhooks, WebhookOutcome
from comity.live.state.model import (
    ROLLBACK,
    CheckpointNode,
    CheckpointTree,
    StateForm,
    StateKey,
    StateSummary,
    ancestors,
)
from comity.live.state.service import StateService
from comity.live.turns.model import TURN_PAGE, StoredTurn, TurnCause, TurnOrigin, TurnRequest
from comity.live.turns.service import TurnWorker
from comity.mcp import jsonrpc
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, Actor
from comity.mcp.mcpl import MAX_NAME_LENGTH, FeatureSet, ScopeBounds
from comity.mcp.mgp import format_timestamp
from comity.policy.grants import FEATURE_VERB, Effect, Grant
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.policy.snapshot import PolicyEngine

type LongText = Annotated[str, Meta(min_length=1, max_length=64 * 1024)]
type LiveName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)]


class ChannelOpenBody(RequestBody, frozen=True):
    """The channel to reopen, or the type and address of a new one."""

    server: LongText
    channel: LongText | None = None
    type: LongText | None = None
    address: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class ChannelBody(RequestBody, frozen=True):
    """A channel of a server."""

    server: LongText
    channel: LongText


class ChannelMessageBody(ChannelBody, frozen=True):
    """A message to publish in a channel."""

    text: LongText


class ChannelsApi:
    """Lists, opens and closes channels, and publishes messages in them."""

    def __init__(self, output_router: OutputRouter) -> None:
        self._channels = output_router.outputs.channels
        self._output_router = output_router

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        return (
            ApiRoute("GET", "/api/channels", read, self._list_channels, EmptyQuery),
            ApiRoute("POST", "/api/channels/open", write, self._open, ChannelOpenBody),
            ApiRoute("POST", "/api/channels/close", write, self._close, ChannelBody),
            ApiRoute("POST", "/api/channels/send", write, self._publish, ChannelMessageBody),
        )

    async def _list_channels(self, _: ApiRequest[EmptyQuery]) -> View:
        return {"channels": [_channel_view(each) for each in self._channels.list_statuses()]}

    async def _open(self, request: ApiRequest[ChannelOpenBody]) -> View:
        wanted, server = request.input, request.input.server
        if wanted.channel is not None:
            found = await self._channels.reopen(server, wanted.channel)
        elif wanted.type is not None:
            kind, metadata = wanted.type, wanted.metadata
            found = await self._channels.open(server, kind, wanted.address, metadata)
        else:
            raise MalformedMessage("channel or type is missing", INVALID_PARAMS)
        return _channel_view(ChannelStatus(server, found, "open"))

    async def _close(self, request: ApiRequest[ChannelBody]) -> View:
        server, id = request.input.server, request.input.channel
        closed = await self._channels.close(server, id)
        return {"server": server, "channel": id, "closed": closed}

    async def _publish(self, request: ApiRequest[ChannelMessageBody]) -> View:
        server, id = request.input.server, request.input.channel
        content = to_text_content(request.input.text)
        words = OutgoingMessage(f"say:{secrets.token_hex(16)}", "", content)
        message = await self._output_router.publish(OutputTarget(id, server), words)
        return {"server": server, "channel": id, "delivered": True, "message": message or None}


def _channel_view(status: ChannelStatus) -> dict[str, object]:
    found = status.descriptor
    return {
        "server": status.server,
        "id": found.id,
        "type": found.type,
        "label": found.label,
        "direction": found.direction,
        "address": found.address,
        "metadata": found.metadata,
        "state": status.state,
    }


class FeatureDecisionBody(RequestBody, frozen=True):
    """The feature set to enable, to disable or to reset."""

    server: LiveName
    feature: LiveName
    justification: ShortText = ""


class LiveServerDirectory(Protocol):
    """The connected live servers."""

    def all(self) -> Iterable[LiveServer]: ...
    def get(self, server: str) -> LiveServer | None: ...


class FeatureGrantWriter(Protocol):
    """Stores and revokes grants on behalf of an actor, if the actor may do so."""

    async def put(self, actor: Actor, grant: Grant) -> Grant: ...
    async def revoke(self, actor: Actor, subject: str, verb: str, target: str) -> bool: ...


class FeaturesApi:
    """Lists, enables and disables the feature sets of servers."""

    def __init__(self, hosts: LiveServerDirectory, grants: FeatureGrantWriter) -> None:
        self._hosts = hosts
        self._grants = grants

    @property
    def routes(self) -> ApiRoutes:
        write, decide, body = Permission.ADMIN_WRITE, self._decide, FeatureDecisionBody
        return (
            ApiRoute(
                "GET", "/api/features", Permission.ADMIN_READ, self._list_features, ServerQuery
            ),
            ApiRoute("POST", "/api/features/enable", write, decide(Effect.ALLOW), body),
            ApiRoute("POST", "/api/features/disable", write, decide(Effect.DENY), body),
            ApiRoute("POST", "/api/features/reset", write, decide(None), body),
        )

    async def _list_features(self, request: ApiRequest[ServerQuery]) -> View:
        named = request.input.server
        found = [each for each in self._hosts.all() if named in (None, each.server)]
        return {"servers": [describe_live_server(each) for each in found]}

    def _decide(self, effect: Effect | None) -> ApiHandler[FeatureDecisionBody]:
        """Return the handler for this decision. None removes an earlier decision."""

        async def handle(request: ApiRequest[FeatureDecisionBody]) -> View:
            wanted = request.input
            subject, name = SERVER_SUBJECT_PREFIX + wanted.server, wanted.feature
            if effect is None:
                await self._grants.revoke(request.actor, subject, FEATURE_VERB, name)
            else:
                why = wanted.justification
                grant = Grant(subject, FEATURE_VERB, name, effect, justification=why)
                await self._grants.put(request.actor, grant)
            hosted = self._hosts.get(wanted.server)
            return {"servers": [] if hosted is None else [describe_live_server(hosted)]}

        return handle


def describe_live_server(live_server: LiveServer) -> dict[str, object]:
    """Return the description of a live server with all its feature sets."""
    declared = live_server.declared
    return {
        "server": live_server.server,
        "protocol": "2026-07-28" if live_server.is_modern else "2025-11-25",
        "version": declared.version,
        "features": [
            {
                "feature": name,
                "description": each.description,
                "uses": sorted(each.uses),
                "scoped": each.is_scoped,
                "rollback": each.has_rollback,
                **_status_view(live_server, name),
                **_bounds_view(live_server, each),
            }
            for name, each in sorted(declared.sets.items())
        ],
    }


def _status_view(live_server: LiveServer, name: str) -> dict[str, object]:
    found = live_server.feature_statuses.get(name, UNDECIDED)
    until = None if found.until is None else format_timestamp(found.until)
    return {
        "enabled": found.is_enabled,
        "by": found.by,
        "reason": found.reason,
        "until": until,
    }


def _bounds_view(live_server: LiveServer, each: FeatureSet) -> dict[str, object]:
    bounds: ScopeBounds | None = live_server.policy.scopes.get(each.name)
    if bounds is None:
        return {}
    return {"whitelist": list(bounds.whitelist), "blacklist": list(bounds.blacklist)}


RETRY_SECONDS: Final = 30
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_STATUS: Final = {
    WebhookOutcome.KEPT: (202, {"accepted": True}),
    WebhookOutcome.KNOWN: (200, {"accepted": False, "reason": "duplicate"}),
    WebhookOutcome.UNSIGNED: (401, {"error": "not signed as it should be"}),
    WebhookOutcome.TOO_MANY: (429, {"error": "too many; send it again later"}),
}


class HooksDoor:
    """The HTTP endpoint of inbound webhooks."""

    def __init__(self, hooks: InboundWebhooks) -> None:
        self._hooks = hooks

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        if scope["method"] != "POST":
            await asgi.send_empty(send, 405, ((b"allow", b"POST"),))
            return
        name = str(scope["path"]).removeprefix(HOOKS)
        body = await asgi.read_body(receive, headers, self._hooks.max_bytes)
        known = name if _NAME.fullmatch(name) else ""
        # Readers disagree on whether the first or the last of two equal headers counts.
        taken = await self._hooks.receive(known, _unrepeated_headers(scope["headers"]), body)
        status, answer = _STATUS[taken]
        more = (
            ((b"retry-after", b"%d" % RETRY_SECONDS),) if taken is WebhookOutcome.TOO_MANY else ()
        )
        await asgi.send_json(send, status, bytes(jsonrpc.to_raw(answer)), more)


def _unrepeated_headers(headers: HeaderList) -> dict[bytes, bytes]:
    """Return the headers that occur once, so that a request cannot carry two signatures or ids."""
    names = [name for name, _ in headers]
    return {name: value for name, value in headers if names.count(name) == 1}


_MAX_NUMBER_DIGITS: Final = 18


class PushPageQuery(RequestQuery, frozen=True):
    """The filter and the cursor of a list of pushes."""

    server: str = ""
    cursor: str = ""


class PushesApi:
    """Lists pushes for operators, without their content, and retries failed ones."""

    def __init__(
        self, store: PushStore, clock: Callable[[], datetime], wake: Callable[[], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        return (
            ApiRoute("GET", "/api/pushes", read, self._list_pushes, PushPageQuery),
            ApiRoute("POST", "/api/pushes/{number}/retry", write, self._retry, EmptyBody),
        )

    async def _retry(self, request: ApiRequest[EmptyBody]) -> View:
        number = _parse_number(request.path["number"])
        if not await self._store.retry(number, self._clock()):
            raise MalformedMessage("no push of this number has failed", NOTHING_HERE)
        self._wake()
        return {"number": number, "state": "waiting"}

    async def _list_pushes(self, request: ApiRequest[PushPageQuery]) -> View:
        before = _parse_number(request.input.cursor or "0")
        page = await self._store.page(before, PUSH_PAGE, request.input.server)
        counts = await self._store.count_by_state()
        listed: dict[str, object] = {
            "pushes": [_push_view(each) for each in page],
            **counts,
        }
        return listed if len(page) < PUSH_PAGE else {**listed, "next": str(page[-1].number)}


def _parse_number(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_NUMBER_DIGITS
    if not is_number:
        raise MalformedMessage("the number of a push must be a number", NOTHING_HERE)
    return int(text)


def _push_view(stored_push: StoredPush) -> dict[str, object]:
    return {
        "number": stored_push.number,
        "server": stored_push.push.server,
        "event": stored_push.push.id,
        "feature_set": stored_push.push.feature or None,
        "timestamp": stored_push.push.at,
        "received_at": stored_push.received_at,
        "to": str(stored_push.route),
        "conversation": stored_push.route.conversation or None,
        "state": stored_push.state,
        "attempts": stored_push.attempts,
        "inference": stored_push.inference or None,
        "due_at": stored_push.due_at if stored_push.done_at is None else None,
        "done_at": stored_push.done_at,
        "last_error": stored_push.last_error or None,
    }


AS_A_WHOLE: Final = "*"
"""The name of the whole server in a path. No feature set has this name."""


class StateAuthorizer(Protocol):
    """Checks what an actor may administer."""

    def require_grant(self, actor: Actor, verb: str, target: str) -> None: ...


class RollbackBody(RequestBody, frozen=True):
    """The checkpoint to roll back to."""

    checkpoint: NonEmptyText


class StateApi:
    """Shows the state of servers to operators, rolls it back and deletes it."""

    def __init__(self, states: StateService, live_host: LiveHost, grants: StateAuthorizer) -> None:
        self._states = states
        self._live_host = live_host
        self._grants = grants

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.SERVER_READ, Permission.SERVER_WRITE
        one = "/api/state/{server}/{feature}"
        return (
            ApiRoute("GET", "/api/state", Permission.OWN_RECORDS, self._list_states, EmptyQuery),
            ApiRoute("GET", one, read, self._show_tree, EmptyQuery),
            ApiRoute("GET", one + "/{checkpoint}", read, self._show_checkpoint, EmptyQuery),
            ApiRoute("POST", f"{one}/rollback", write, self._roll_back, RollbackBody),
            ApiRoute("POST", f"{one}/delete", write, self._forget, EmptyBody),
        )

    async def _list_states(self, request: ApiRequest[EmptyQuery]) -> View:
        """List the state of each server that the principal may administer."""
        every = await self._states.summaries()
        found = [each for each in every if self._may_see(request.actor, each)]
        return {"state": [_summary_view(each) for each in found]}

    def _may_see(self, actor: Actor, summary: StateSummary) -> bool:
        try:
            self._grants.require_grant(actor, ADMIN_READ, f"{summary.state_key.server}/*")
        except MalformedMessage:
            return False
        return True

    async def _show_tree(self, request: ApiRequest[EmptyQuery]) -> View:
        place = _state_key(request)
        tree = await self._states.tree(place)
        if not tree.nodes:
            raise MalformedMessage("there is no state of this feature set", NOTHING_HERE)
        head = None if tree.head is None else tree.nodes[tree.head].name
        line = {each.number for each in ancestors(tree, tree.head)}
        return {
            **_state_key_view(place),
            "head": head,
            "can_roll_back": self._can_roll_back(place),
            "checkpoints": [
                {**_node_view(tree, each), "is_on_line": number in line}
                for number, each in sorted(tree.nodes.items())
            ],
        }

    async def _show_checkpoint(self, request: ApiRequest[EmptyQuery]) -> View:
        place, name = _state_key(request), request.path["checkpoint"]
        tree = await self._states.tree(place)
        node = tree.find(name)
        if node is None:
            raise MalformedMessage(f"there is no checkpoint {name!r:.300}", NOTHING_HERE)
        state = await self._states.state_of(place, node)
        shown = {} if state is None else {"data": Raw(state)}
        return {**_state_key_view(place), **_node_view(tree, node), **shown}

    async def _roll_back(self, request: ApiRequest[RollbackBody]) -> View:
        place, name = _state_key(request), request.input.checkpoint
        by = self._live_host.get(place.server)
        if by is None:
            reason = f"server {place.server!r:.200} is not there, or has no state"
            raise Unavailable(reason, SERVER_NOT_READY)
        deed = LiveAuditEntry(place.server, ROLLBACK, place.feature, by=request.actor.party)
        view: dict[str, object] = {**_state_key_view(place), "checkpoint": name}
        try:
            told = await self._states.roll_back(by, place.feature, name)
        except (MalformedMessage, Unavailable) as error:
            self._record_rollback(deed, name, error.fault.error_type, AuditResult.FAILURE)
            if error.fault is not CHECKPOINT_UNKNOWN:
                raise
            return {**view, "success": False, "code": error.fault.code, "reason": str(error)}
        outcome = "ok" if told.success else "refused"
        self._record_rollback(
            deed, name, outcome, AuditResult.SUCCESS if told.success else AuditResult.FAILURE
        )
        return {**view, "success": told.success, "reason": told.reason or None}

    async def _forget(self, request: ApiRequest[EmptyBody]) -> View:
        place = _state_key(request)
        gone = await self._states.forget(place)
        deed = LiveAuditEntry(place.server, "", place.feature, by=request.actor.party)
        record_entry(
            self._live_host.audit,
            AuditType.STATE_DELETED,
            replace(deed, details={"dropped": gone}),
        )
        return {**_state_key_view(place), "dropped": gone}

    def _record_rollback(
        self, entry: LiveAuditEntry, checkpoint: str, outcome: str, result: AuditResult
    ) -> None:
        done = replace(entry, outcome=outcome, details={"checkpoint": checkpoint})
        record_entry(self._live_host.audit, AuditType.STATE_ROLLED_BACK, done, result)

    def _can_roll_back(self, state_key: StateKey) -> bool:
        by = self._live_host.get(state_key.server)
        declared = None if by is None else by.declared.sets.get(state_key.feature)
        is_enabled = by is not None and state_key.feature in by.enabled
        return declared is not None and is_enabled and declared.has_rollback


def _state_key(request: ApiRequest[Any]) -> StateKey:
    feature = request.path["feature"]
    return StateKey(request.path["server"], WHOLE if feature == AS_A_WHOLE else feature)


def _state_key_view(state_key: StateKey) -> dict[str, object]:
    return {"server": state_key.server, "feature_set": state_key.feature or None}


def _summary_view(summary: StateSummary) -> dict[str, object]:
    return {
        **_state_key_view(summary.state_key),
        "head": summary.head,
        "holds": "reference" if summary.is_opaque else "data",
        "checkpoints": summary.checkpoints,
        "bytes": summary.size,
        "moved_at": summary.moved_at,
    }


def _node_view(tree: CheckpointTree, node: CheckpointNode) -> dict[str, object]:
    follows = None if node.base is None else tree.nodes.get(node.base)
    return {
        "checkpoint": node.name,
        # The parent that the server named, and below it that parent if Comity keeps it.
        "parent": node.parent,
        "follows": None if follows is None else follows.name,
        "holds": "reference" if node.form is StateForm.OPAQUE else "data",
        "stored_as": node.form,
        "bytes": node.size,
        "at": node.at,
        "is_current": node.number == tree.head,
        "drop_reason": node.why or None,
        "is_lost": node.is_lost,
    }


TAKE_TURN_VERB: Final = "turn/take"
CONVERSATIONS_TARGET: Final = "conversations"
MAIN_CONVERSATION: Final = "main"
MAX_WAIT: Final = timedelta(seconds=20)
MAX_SPOKEN_PLACES: Final = 16

type QueryNumber = Annotated[int, Meta(ge=0, le=10**15)]


class TurnBody(RequestBody, frozen=True):
    """The message for the model. Without `content` and `text`, the model continues."""

    conversation: NonEmptyText = MAIN_CONVERSATION
    key: NonEmptyText | None = None
    content: object = None
    text: str | None = None
    reply_to: Annotated[tuple[str, ...], Meta(max_length=MAX_SPOKEN_PLACES)] = ()

    def to_content(self) -> Content:
        found = self.text if self.content is None else self.content
        return () if found is None else content_in(jsonrpc.to_raw(found), "what is said")


class TurnPageQuery(RequestQuery, frozen=True):
    """The filter and the cursor of a list of turns."""

    conversation: str = ""
    before: QueryNumber = 0


class TurnQuery(RequestQuery, frozen=True):
    """The number of characters that the client has, and the seconds to wait for more."""

    after: QueryNumber = 0
    wait: QueryNumber = 0


class TurnsApi:
    """Starts turns for principals with a grant, and shows each principal its own turns."""

    def __init__(self, turns: TurnWorker, policy_engine: PolicyEngine, party: str) -> None:
        self._turns = turns
        self._policy_engine = policy_engine
        self._party = party

    @property
    def routes(self) -> ApiRoutes:
        own = Permission.OWN_RECORDS
        return (
            ApiRoute("GET", "/api/turns", own, self._list_turns, TurnPageQuery),
            ApiRoute("POST", "/api/turns", own, self._start_turn, TurnBody),
            ApiRoute("GET", "/api/turns/{id}", own, self._follow, TurnQuery),
        )

    async def _start_turn(self, request: ApiRequest[TurnBody]) -> View:
        said, actor = request.input, request.actor
        self._require_permission(actor, said.conversation)
        if said.reply_to and not self._may(actor, ADMIN_WRITE):
            raise MalformedMessage("`reply_to` is for operators only", ACCESS_DENIED)
        key = secrets.token_hex(16) if said.key is None else said.key
        cause = TurnCause(TurnOrigin.REQUEST, f"request/{actor.party}/{key}", self._party)
        content, places = said.to_content(), said.reply_to
        taken = await self._turns.start(
            TurnRequest(cause, said.conversation, content, actor.party, places)
        )
        return {
            "id": taken.inference,
            "conversation": taken.conversation,
            "is_new": taken.is_new,
        }

    async def _list_turns(self, request: ApiRequest[TurnPageQuery]) -> View:
        wanted = request.input
        page = await self._turns.store.page(wanted.before, TURN_PAGE, wanted.conversation)
        shown = [_turn_view(each) for each in page if self._may_see(request.actor, each)]
        listed: dict[str, object] = {"turns": shown}
        return listed if len(page) < TURN_PAGE else {**listed, "next": page[-1].number}

    async def _follow(self, request: ApiRequest[TurnQuery]) -> View:
        """Return a turn with its output beyond `after`. Wait a short time for more."""
        id, wanted = request.path["id"], request.input
        turn = await self._turns.store.get(id)
        if turn is None or not self._may_see(request.actor, turn):
            raise MalformedMessage(f"there is no turn {id!r:.80}", NOTHING_HERE)
        wait = min(wanted.wait, MAX_WAIT.seconds)
        turn, words = await self._turns.wait_for_progress(id, wanted.after, timedelta(seconds=wait))
        return {**_turn_view(turn), "text": words, "is_over": not turn.state.is_open}

    def _may_see(self, actor: Actor, turn: StoredTurn) -> bool:
        return turn.request_fields.get("author") == actor.party or self._may(actor, ADMIN_READ)

    def _may(self, actor: Actor, verb: str) -> bool:
        return self._policy_engine.authorize(actor, verb, "", "").effect is Effect.ALLOW

    def _require_permission(self, actor: Actor, conversation: str) -> None:
        judged = self._policy_engine.authorize(
            actor, TAKE_TURN_VERB, CONVERSATIONS_TARGET, conversation
        )
        if judged.effect is not Effect.ALLOW and not self._may(actor, ADMIN_WRITE):
            who = actor.party or "nobody"
            raise MalformedMessage(
                f"{who} has no grant of {TAKE_TURN_VERB} "
                f"on {CONVERSATIONS_TARGET}/{conversation:.80}",
                ACCESS_DENIED,
            )


def _turn_view(turn: StoredTurn) -> dict[str, object]:
    errand, facts = turn.request_fields, turn.facts
    return {
        "id": turn.id,
        "conversation": turn.conversation,
        "turn": turn.index,
        "state": turn.state,
        "cause": {"origin": errand["origin"], "key": turn.cause, "server": errand["server"]},
        "author": errand["author"],
        "principal": errand["party"],
        "reply_to": errand["say_in"],
        "model": facts.model or None,
        "usage": facts.usage.on_wire(),
        "injected": list(facts.injected),
        "rewrote": list(facts.rewrote),
        "tools_used": facts.tools,
        "attempts": turn.attempts,
        "error": facts.error or None,
        "asked": text_of(turn.content),
        "reply": text_of(turn.said) or None,
        "at": turn.at,
        "ended_at": turn.ended_at,
    }
