"""Whatever a peer says, in whatever order: nothing reaches the wrong errand, leaks or hangs.

A model that is told everything plays beside the conversation and foretells what it hears.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from comity.errors import EXHAUSTED, INVALID_REQUEST, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.conversation import (
    Conversation,
    Heard,
    PeerCancellation,
    PeerNotification,
    PeerRequest,
    PeerResponse,
    UnmatchedMessage,
)
from comity.mcp.jsonrpc import Frame
from comity.mcp.protocol import (
    CANCELLED,
    LISTEN,
    PROGRESS,
    STANDALONE,
    SUBSCRIPTION_ID,
    TOOLS_CHANGED,
    UNKNOWN,
    Stream,
)
from tests.mcp import json_texts
from tests.mcp.json_texts import Written, unhurried

type On = int | Nth | None

LIMIT = 6
MISSING = "<no token>"


# Few values, so that ids, tokens, minted numbers and streams collide all the time.
@dataclass(frozen=True)
class Nth:
    """One of the questions that are open when it comes to it, perhaps in another type."""

    number: int
    worn: Callable[[int], object] = int


own_ids = st.one_of(st.integers(0, 12), st.sampled_from(["1", "2", "own", ""]))
any_ids = st.one_of(own_ids, st.sampled_from([None, True, 1.0, 2.0, [1], {"a": 1}, -1, 2**80]))
tokens = st.one_of(own_ids, st.sampled_from([MISSING, MISSING, None, 1.5]))
nths = st.integers(0, LIMIT - 1).map(Nth)
costumes = st.sampled_from([int, int, int, int, str, float, bool])
open_ids = st.one_of(st.builds(Nth, st.integers(0, LIMIT - 1), costumes), any_ids)
streams = st.one_of(st.sampled_from([UNKNOWN, UNKNOWN, STANDALONE]), st.integers(1, 12), nths)
bodies = st.one_of(
    st.sampled_from([None, 1, "a", [], {}, {"a": 1}, {"_meta": 1}, {"_meta": {"x": 1}}]),
    st.integers(0, 12).map(lambda number: {"_meta": {SUBSCRIPTION_ID: number}, "y": 1}),
)


@dataclass(eq=False)
class Errand:
    """Somebody who asked or was asked, with everything that should be true of the asking."""

    number: int
    own_id: object = None
    token: object = MISSING
    minted_token: bool = False
    listens: bool = False
    ended: int = 0


def said(**members: object) -> Frame:
    """A frame as the peer's bytes make it."""
    return jsonrpc.decode_frame(
        json.dumps({"jsonrpc": "2.0", **members}, separators=(",", ":")).encode()
    )


def params_of(frame: Frame) -> object:
    return json.loads(jsonrpc.encode_frame(frame))["params"]


class Interleaving(RuleBasedStateMachine):
    """Both sides of a conversation, honest and hostile, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.conversation = Conversation[Errand](limit=LIMIT)
        self.open: dict[int, Errand] = {}
        self.taken: dict[tuple[type, int | str], Errand] = {}
        self.errands: list[Errand] = []
        self.last_minted = 0

    def new_errand(self) -> Errand:
        self.errands.append(Errand(len(self.errands)))
        return self.errands[-1]

    def hear(self, frame: Frame, stream: Stream) -> Heard[Errand]:
        return self.conversation.classify(frame, stream)

    def resolved(self, named: object) -> object:
        if not isinstance(named, Nth):
            return named
        minted = [*self.open][named.number % len(self.open)] if self.open else 1
        return named.worn(minted)

    def stream(self, named: On) -> Stream:
        found = self.resolved(named)
        return found if isinstance(found, int) else UNKNOWN

    def beside(self, stream: Stream) -> Errand | None:
        """Who opened the stream."""
        return self.open.get(stream) if stream else None

    @rule(own_id=own_ids, token=tokens, listens=st.booleans(), mint=st.booleans())
    def we_ask(self, own_id: int | str, token: object, listens: bool, mint: bool) -> None:
        errand = self.new_errand()
        params = {"a": 1} if token == MISSING else {"_meta": {"progressToken": token}, "a": 1}
        method = LISTEN if listens else "tools/call"
        frame = said(id=own_id, method=method, params=params)
        if len(self.open) >= LIMIT:
            with pytest.raises(MalformedMessage) as caught:
                self.conversation.register_request(frame, errand, mint_token=mint)
            assert caught.value.fault is EXHAUSTED
            errand.ended = 1
            return
        asked = self.conversation.register_request(frame, errand, mint_token=mint)
        assert type(asked.id) is int
        assert asked.id > self.last_minted, "an id is never minted twice"
        errand.own_id, errand.listens, errand.token = own_id, listens, token
        errand.minted_token = mint and token != MISSING
        if errand.minted_token:
            params = {"_meta": {"progressToken": asked.id}, "a": 1}
        assert (asked.method, params_of(asked)) == (method, params)
        self.last_minted = asked.id
        self.open[asked.id] = errand

    @rule(named=st.one_of(own_ids, nths), on=streams, body=bodies, failed=st.booleans())
    def they_answer(self, named: int | str | Nth, on: On, body: object, failed: bool) -> None:
        """Honest, late, repeated, before its question, on another stream, under a string."""
        answer_id, stream = self.resolved(named), self.stream(on)
        content = {"error": {"code": 1, "message": "m"}} if failed else {"result": body}
        heard = self.hear(said(id=answer_id, **content), stream)
        expected = self.open.get(answer_id) if isinstance(answer_id, int) else None
        if expected is None or stream not in (UNKNOWN, answer_id):
            assert isinstance(heard, UnmatchedMessage)
            return
        assert isinstance(answer_id, int)
        del self.open[answer_id]
        assert isinstance(heard, PeerResponse)
        assert heard.errand is expected
        assert type(heard.frame.id) is type(expected.own_id)
        if not failed and expected.listens and isinstance(body, dict) and "y" in body:
            content = {"result": {"_meta": {SUBSCRIPTION_ID: expected.own_id}, "y": 1}}
        assert heard.frame == said(id=expected.own_id, **content)
        expected.ended += 1

    @rule(named=st.one_of(own_ids, nths), on=streams)
    def they_answer_unreadably(self, named: int | str | Nth, on: On) -> None:
        """The level that a listener's answer is read to says two things."""
        answer_id, stream = self.resolved(named), self.stream(on)
        shown = json.dumps(answer_id).encode()
        data = b'{"jsonrpc":"2.0","id":%b,"result":{"_meta":{"a":1,"a":1}}}' % shown
        heard = self.hear(jsonrpc.decode_frame(data), stream)
        if not isinstance(heard, PeerResponse):
            assert isinstance(heard, UnmatchedMessage)
            return
        assert isinstance(answer_id, int)
        assert heard.errand is self.open.pop(answer_id)
        assert heard.frame.id == heard.errand.own_id
        assert (jsonrpc.error_of(heard.frame) is not None) == heard.errand.listens
        heard.errand.ended += 1

    @rule(on=streams)
    def they_answer_nobody(self, on: On) -> None:
        heard = self.hear(said(id=None, error={"code": 1}), self.stream(on))
        assert isinstance(heard, UnmatchedMessage)

    @rule(named=st.one_of(own_ids, nths), on=streams, taken=st.booleans())
    def they_ask(self, named: int | str | Nth, on: On, taken: bool) -> None:
        """A pending id of ours in a question of theirs is a question all the same."""
        own_id, stream = self.resolved(named), self.stream(on)
        assert isinstance(own_id, int | str)
        frame = said(id=own_id, method="sampling/createMessage", params={})
        assert self.hear(frame, stream) == PeerRequest(frame, self.beside(stream))
        if not taken:
            return
        errand, key = self.new_errand(), (type(own_id), own_id)
        if key in self.taken or len(self.taken) >= LIMIT:
            with pytest.raises(MalformedMessage) as caught:
                self.conversation.register_peer_request(own_id, errand)
            assert caught.value.fault is (INVALID_REQUEST if key in self.taken else EXHAUSTED)
            errand.ended = 1
        else:
            self.conversation.register_peer_request(own_id, errand)
            self.taken[key] = errand

    @rule(own_id=own_ids)
    def we_settle(self, own_id: int | str) -> None:
        self.conversation.settle(own_id)
        errand = self.taken.pop((type(own_id), own_id), None)
        if errand is not None:
            errand.ended += 1

    @rule(named=open_ids, on=streams)
    def they_withdraw(self, named: object, on: On) -> None:
        own_id, stream = self.resolved(named), self.stream(on)
        frame = said(method=CANCELLED, params={"requestId": own_id, "reason": "r"})
        heard = self.hear(frame, stream)
        nameable = isinstance(own_id, int | str)
        errand = self.taken.pop((type(own_id), own_id), None) if nameable else None
        if errand is None:
            assert isinstance(heard, UnmatchedMessage)
        else:
            assert isinstance(heard, PeerCancellation)
            assert heard.errand is errand
            errand.ended += 1

    @rule(named=st.one_of(st.integers(0, 12), nths))
    def we_withdraw(self, named: int | Nth) -> None:
        minted = self.resolved(named)
        assert isinstance(minted, int)
        told = self.conversation.withdraw(minted)
        errand = self.open.pop(minted, None)
        assert (told is None) == (errand is None)
        if told is not None and errand is not None:
            assert params_of(told) == {"requestId": minted}
            errand.ended += 1

    @rule(guess=open_ids, on=streams)
    def they_progress(self, guess: object, on: On) -> None:
        """Under a minted token, a guessed one, a foreign one, one of another type."""
        token, stream = self.resolved(guess), self.stream(on)
        frame = said(method=PROGRESS, params={"progressToken": token, "progress": 1})
        heard = self.hear(frame, stream)
        named = self.open.get(token) if type(token) is int else None
        beside = self.beside(stream)
        if named is not None and named.minted_token and stream in (UNKNOWN, STANDALONE, token):
            restored = said(method=PROGRESS, params={"progressToken": named.token, "progress": 1})
            assert heard == PeerNotification(restored, named)
        elif stream is UNKNOWN or (beside is not None and beside.minted_token):
            assert isinstance(heard, UnmatchedMessage)
        else:
            assert heard == PeerNotification(frame, beside)

    @rule(guess=open_ids, on=streams)
    def they_notify_a_subscription(self, guess: object, on: On) -> None:
        subscription, stream = self.resolved(guess), self.stream(on)
        meta = {SUBSCRIPTION_ID: subscription}
        frame = said(method=TOOLS_CHANGED, params={"_meta": meta})
        heard = self.hear(frame, stream)
        listener = self.beside(stream)
        if stream is UNKNOWN:
            listener = self.open.get(subscription) if type(subscription) is int else None
            if listener is None or not listener.listens:
                assert isinstance(heard, UnmatchedMessage)
                return
        if listener is not None and listener.listens:
            restored = {"_meta": {SUBSCRIPTION_ID: listener.own_id}}
            frame = said(method=TOOLS_CHANGED, params=restored)
        assert heard == PeerNotification(frame, listener)

    @rule(on=streams, params=bodies.filter(lambda body: "y" not in str(body)))
    def they_notify(self, on: On, params: object) -> None:
        stream = self.stream(on)
        frame = said(method="notifications/own", params=params)
        assert self.hear(frame, stream) == PeerNotification(frame, self.beside(stream))

    @rule(written=json_texts.frames(), on=streams)
    def they_say_anything(self, written: Written, on: On) -> None:
        stream = self.stream(on)
        try:
            frame = jsonrpc.decode_frame(written.data)
            heard = self.hear(frame, stream)
        except MalformedMessage:
            return
        if isinstance(heard, PeerResponse):
            assert type(frame.id) is int
            assert heard.errand is self.open.pop(frame.id)
            heard.errand.ended += 1

    @rule(on=streams)
    def a_stream_ends(self, on: On) -> None:
        stream = self.stream(on)
        errand = self.open.pop(stream, None) if stream else None
        assert self.conversation.drop(stream) is errand
        if errand is not None:
            errand.ended += 1

    @rule()
    def the_link_closes(self) -> None:
        asked, taken = self.conversation.close()
        assert asked == [*self.open.values()]
        assert taken == [*self.taken.values()]
        for errand in (*asked, *taken):
            errand.ended += 1
        self.open.clear()
        self.taken.clear()

    @invariant()
    def exactly_what_is_open_is_remembered(self) -> None:
        assert len(self.conversation) == len(self.open) + len(self.taken)
        assert self.conversation.pending_requests == [*self.open.values()]

    @invariant()
    def every_errand_is_open_or_has_ended_once(self) -> None:
        pending = [*self.open.values(), *self.taken.values()]
        for errand in self.errands:
            assert errand.ended == (0 if errand in pending else 1)

    def teardown(self) -> None:
        """Whatever happened, everything can still be ended, and then nothing is left."""
        for minted, errand in [*self.open.items()]:
            heard = self.hear(said(id=minted, result={}), minted if minted % 2 else UNKNOWN)
            assert isinstance(heard, PeerResponse)
            assert heard.errand is errand
        for _, own_id in self.taken:
            self.conversation.settle(own_id)
        assert len(self.conversation) == 0


@pytest.mark.timeout(180)
def test_no_interleaving_misleads_an_answer_or_leaves_anything_behind() -> None:
    run_state_machine_as_test(Interleaving, settings=unhurried)


@unhurried
@given(st.permutations(range(1, 9)), st.lists(st.sampled_from(["answer", "drop", "withdraw"])))
def test_answers_in_any_order_each_reach_the_one_who_asked(
    order: list[int], ends: list[str]
) -> None:
    conversation = Conversation[str]()
    for number in range(1, 9):
        conversation.register_request(jsonrpc.make_request(1, "m"), f"errand {number}")
    for number, end in zip(order, [*ends, *["answer"] * 8], strict=False):
        if end == "drop":
            assert conversation.drop(number) == f"errand {number}"
        elif end == "withdraw":
            assert conversation.withdraw(number) is not None
        else:
            heard = conversation.classify(jsonrpc.make_result(number, number), UNKNOWN)
            assert heard == PeerResponse(f"errand {number}", jsonrpc.make_result(1, number))
    assert len(conversation) == 0
