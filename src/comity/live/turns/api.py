"""Operator API for turns: start a turn, follow it and list the turns."""

import secrets
from datetime import datetime, timedelta
from typing import Annotated, Final, NotRequired, TypedDict

from msgspec import Meta

from comity.errors import (
    ACCESS_DENIED,
    NOTHING_HERE,
    MalformedMessage,
)
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import (
    NonEmptyText,
    RequestBody,
    RequestQuery,
)
from comity.inference.messages import Content, content_in, text_of
from comity.live.turns.model import (
    TURN_PAGE,
    StoredTurn,
    TurnCause,
    TurnOrigin,
    TurnRequest,
    TurnState,
)
from comity.live.turns.service import TurnWorker
from comity.mcp import jsonrpc
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, Actor
from comity.policy.grants import Effect
from comity.policy.snapshot import PolicyEngine

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


class StartedTurnView(TypedDict):
    """A turn that was started, or that the same key had started before."""

    id: str
    conversation: str
    is_new: bool


class TurnCauseView(TypedDict):
    """The cause of a turn."""

    origin: str
    key: str
    server: str


class TokenUsageView(TypedDict):
    """The tokens of a turn."""

    inputTokens: int
    outputTokens: int


class InjectionView(TypedDict):
    """A text that a server added for the model."""

    server: str
    namespace: str
    position: str
    text: str


class RewrittenPartView(TypedDict):
    """A passage that servers kept, and the replacement of what followed it.

    `removed` is the length of the removed passage. Its text is not stored.
    """

    kept: str
    removed: int
    added: str


class TurnView(TypedDict):
    """A turn of a conversation: what was said to the model, and its reply."""

    id: str
    conversation: str
    turn: int
    state: TurnState
    cause: TurnCauseView
    author: str
    principal: str
    reply_to: list[str]
    model: str | None
    usage: TokenUsageView
    injected: list[str]
    rewrote: list[str]
    # For operators only: a text may concern other people.
    injections: list[InjectionView]
    rewrite: list[RewrittenPartView]
    tools_used: int
    attempts: int
    error: str | None
    asked: str
    reply: str | None
    at: datetime
    ended_at: datetime | None


class TurnPage(TypedDict):
    """One page of turns, the newest first."""

    turns: list[TurnView]
    next: NotRequired[int]


class FollowedTurnView(TurnView):
    """A turn with its output beyond a place, and whether it is over."""

    text: str
    is_over: bool


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

    async def _start_turn(self, request: ApiRequest[TurnBody]) -> StartedTurnView:
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

    async def _list_turns(self, request: ApiRequest[TurnPageQuery]) -> TurnPage:
        wanted = request.input
        page = await self._turns.store.page(wanted.before, TURN_PAGE, wanted.conversation)
        shown = [
            self._turn_view(request.actor, each)
            for each in page
            if self._may_see(request.actor, each)
        ]
        listed: TurnPage = {"turns": shown}
        return listed if len(page) < TURN_PAGE else {**listed, "next": page[-1].number}

    async def _follow(self, request: ApiRequest[TurnQuery]) -> FollowedTurnView:
        """Return a turn with its output beyond `after`. Wait a short time for more."""
        id, wanted = request.path["id"], request.input
        turn = await self._turns.store.get(id)
        if turn is None or not self._may_see(request.actor, turn):
            raise MalformedMessage(f"there is no turn {id!r:.80}", NOTHING_HERE)
        wait = min(wanted.wait, MAX_WAIT.seconds)
        turn, words = await self._turns.wait_for_progress(id, wanted.after, timedelta(seconds=wait))
        view = self._turn_view(request.actor, turn)
        return {**view, "text": words, "is_over": not turn.state.is_open}

    def _turn_view(self, actor: Actor, turn: StoredTurn) -> TurnView:
        view = _turn_view(turn)
        return view if self._may(actor, ADMIN_READ) else {**view, "injections": []}

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


def _turn_view(turn: StoredTurn) -> TurnView:
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
        "usage": {"inputTokens": facts.usage.input, "outputTokens": facts.usage.output},
        "injected": list(facts.injected),
        "rewrote": list(facts.rewrote),
        "injections": [
            {
                "server": each.server,
                "namespace": each.namespace,
                "position": each.position,
                "text": each.text,
            }
            for each in turn.hook_texts.injections
        ],
        "rewrite": [
            {"kept": each.kept, "removed": each.removed, "added": each.added}
            for each in turn.hook_texts.rewrite
        ],
        "tools_used": facts.tools,
        "attempts": turn.attempts,
        "error": facts.error or None,
        "asked": text_of(turn.content),
        "reply": text_of(turn.said) or None,
        "at": turn.at,
        "ended_at": turn.ended_at,
    }
