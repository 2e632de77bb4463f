"""The operator API for live servers, and the endpoint of inbound webhooks."""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, NotRequired, Protocol, TypedDict

from msgspec import Meta, field

from comity.errors import (
    INVALID_PARAMS,
    NOTHING_HERE,
    MalformedMessage,
)
from comity.http import asgi
from comity.http.api import ApiHandler, ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import (
    EmptyBody,
    EmptyQuery,
    RequestBody,
    RequestQuery,
    ServerQuery,
    ShortText,
)
from comity.http.asgi import HOOKS, HeaderList, Receive, Scope, Send
from comity.inference.messages import to_text_content
from comity.live.channels.model import ChannelDirection, OutputTarget
from comity.live.channels.outgoing_messages import OutgoingMessage, OutputRouter
from comity.live.channels.service import ChannelStatus
from comity.live.features import UNDECIDED
from comity.live.host import LiveServer
from comity.live.pushes.model import PUSH_PAGE, PushStore, StoredPush
from comity.live.pushes.service import InboundWebhooks, WebhookOutcome
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.mcpl import MAX_NAME_LENGTH, FeatureSet, ScopeBounds
from comity.mcp.mgp import format_timestamp
from comity.policy.grants import FEATURE_VERB, Effect, Grant
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.toolkit.jobs import JobState

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


class ChannelView(TypedDict):
    """A channel of a live server."""

    server: str
    id: str
    type: str
    label: str
    direction: ChannelDirection
    address: Mapping[str, object]
    metadata: Mapping[str, object]
    state: str


class ChannelListView(TypedDict):
    """All channels, by server and id."""

    channels: list[ChannelView]


class ClosedChannelView(TypedDict):
    """A channel, and whether its server closed it."""

    server: str
    channel: str
    closed: bool


class PublishedMessageView(TypedDict):
    """A message that a channel took. `message` is the id that its server gave."""

    server: str
    channel: str
    delivered: bool
    message: str | None


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

    async def _list_channels(self, _: ApiRequest[EmptyQuery]) -> ChannelListView:
        return {"channels": [_channel_view(each) for each in self._channels.list_statuses()]}

    async def _open(self, request: ApiRequest[ChannelOpenBody]) -> ChannelView:
        wanted, server = request.input, request.input.server
        if wanted.channel is not None:
            found = await self._channels.reopen(server, wanted.channel)
        elif wanted.type is not None:
            kind, metadata = wanted.type, wanted.metadata
            found = await self._channels.open(server, kind, wanted.address, metadata)
        else:
            raise MalformedMessage("channel or type is missing", INVALID_PARAMS)
        return _channel_view(ChannelStatus(server, found, "open"))

    async def _close(self, request: ApiRequest[ChannelBody]) -> ClosedChannelView:
        server, id = request.input.server, request.input.channel
        closed = await self._channels.close(server, id)
        return {"server": server, "channel": id, "closed": closed}

    async def _publish(self, request: ApiRequest[ChannelMessageBody]) -> PublishedMessageView:
        server, id = request.input.server, request.input.channel
        content = to_text_content(request.input.text)
        words = OutgoingMessage(f"say:{secrets.token_hex(16)}", "", content)
        message = await self._output_router.publish(OutputTarget(id, server), words)
        return {"server": server, "channel": id, "delivered": True, "message": message or None}


def _channel_view(status: ChannelStatus) -> ChannelView:
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


class FeatureStatusView(TypedDict):
    """Whether a feature set is enabled, and by whose decision."""

    enabled: bool
    by: str
    reason: str
    until: str | None


class FeatureBoundsView(TypedDict):
    """The scopes that the configuration allows and refuses for a feature set."""

    whitelist: NotRequired[list[str]]
    blacklist: NotRequired[list[str]]


class FeatureView(FeatureStatusView, FeatureBoundsView):
    """A feature set of a live server."""

    feature: str
    description: str
    uses: list[str]
    scoped: bool
    rollback: bool


class LiveServerView(TypedDict):
    """A live server and its feature sets."""

    server: str
    protocol: str
    version: str
    features: list[FeatureView]


class LiveServerListView(TypedDict):
    """Live servers."""

    servers: list[LiveServerView]


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

    async def _list_features(self, request: ApiRequest[ServerQuery]) -> LiveServerListView:
        named = request.input.server
        found = [each for each in self._hosts.all() if named in (None, each.server)]
        return {"servers": [describe_live_server(each) for each in found]}

    def _decide(self, effect: Effect | None) -> ApiHandler[FeatureDecisionBody]:
        """Return the handler for this decision. None removes an earlier decision."""

        async def handle(request: ApiRequest[FeatureDecisionBody]) -> LiveServerListView:
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


def describe_live_server(live_server: LiveServer) -> LiveServerView:
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


def _status_view(live_server: LiveServer, name: str) -> FeatureStatusView:
    found = live_server.feature_statuses.get(name, UNDECIDED)
    until = None if found.until is None else format_timestamp(found.until)
    return {
        "enabled": found.is_enabled,
        "by": found.by,
        "reason": found.reason,
        "until": until,
    }


def _bounds_view(live_server: LiveServer, each: FeatureSet) -> FeatureBoundsView:
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


class PushView(TypedDict):
    """A push of a live server, without its content."""

    number: int
    server: str
    event: str
    feature_set: str | None
    timestamp: datetime
    received_at: datetime
    to: str
    conversation: str | None
    state: JobState
    attempts: int
    inference: str | None
    due_at: datetime | None
    done_at: datetime | None
    last_error: str | None


class PushPage(TypedDict):
    """One page of pushes, the newest first, and how many there are in each state."""

    pushes: list[PushView]
    waiting: int
    done: int
    failed: int
    next: NotRequired[str]


class RetriedPushView(TypedDict):
    """A push that is delivered again."""

    number: int
    state: JobState


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

    async def _retry(self, request: ApiRequest[EmptyBody]) -> RetriedPushView:
        number = _parse_number(request.path["number"])
        if not await self._store.retry(number, self._clock()):
            raise MalformedMessage("no push of this number has failed", NOTHING_HERE)
        self._wake()
        return {"number": number, "state": JobState.WAITING}

    async def _list_pushes(self, request: ApiRequest[PushPageQuery]) -> PushPage:
        before = _parse_number(request.input.cursor or "0")
        page = await self._store.page(before, PUSH_PAGE, request.input.server)
        counts = await self._store.count_by_state()
        listed: PushPage = {
            "pushes": [_push_view(each) for each in page],
            "waiting": counts[JobState.WAITING],
            "done": counts[JobState.DONE],
            "failed": counts[JobState.FAILED],
        }
        return listed if len(page) < PUSH_PAGE else {**listed, "next": str(page[-1].number)}


def _parse_number(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_NUMBER_DIGITS
    if not is_number:
        raise MalformedMessage("the number of a push must be a number", NOTHING_HERE)
    return int(text)


def _push_view(stored_push: StoredPush) -> PushView:
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
