"""Channels: how they are written, who may use them, where messages go, what observers see."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import Raw

from comity.errors import CHANNEL_UNKNOWN, SCOPE_NOT_PERMITTED, MalformedMessage, Misconfigured
from comity.inference.messages import to_text_content
from comity.live.channels import model
from comity.live.channels.model import (
    ChannelDescriptor,
    ChannelDirection,
    ChannelRoute,
    ConversationScope,
    IncomingMessage,
    OutputTarget,
    PublishResult,
    StreamRedactor,
    TopicChatConfig,
)
from comity.live.settings import channels_of
from comity.mcp import jsonrpc
from comity.mcp.mcpl import FeatureSet, FeatureUse, ScopeBounds
from tests.support.cases import loop_over
from tests.support.writing import from_text

PUBLISH = FeatureSet("channels.publish", "", frozenset({FeatureUse.PUBLISH}))
OBSERVE = FeatureSet("channels.observe", "", frozenset({FeatureUse.OBSERVE}))
THINKING = FeatureSet("channels.thinking", "", frozenset({FeatureUse.OBSERVE}))
HELLO = IncomingMessage(
    "room", "m1", to_text_content("hello"), thread="t1", author_id="u1", author="Ana"
)


@pytest.mark.parametrize("text", ["topic:ops", "channel:mail/inbox", "channel:mail/a/b:c"])
def test_a_place_is_written_as_it_is_read(text: str) -> None:
    assert str(model.parse_target(text)) == text


@pytest.mark.parametrize("text", ["", "ops", "topic:", "topic:a b", "channel:mail", "channel:/x"])
def test_what_names_no_place_is_none(text: str) -> None:
    with pytest.raises(MalformedMessage):
        model.parse_target(text)


def test_a_use_needs_a_set_that_is_for_it() -> None:
    assert model.require_feature_sets([PUBLISH, OBSERVE], FeatureUse.OBSERVE) == [OBSERVE]
    assert model.require_feature_sets([PUBLISH], *model.CHANNEL_USES) == [PUBLISH]
    with pytest.raises(MalformedMessage, match="observe"):
        model.require_feature_sets([PUBLISH], FeatureUse.OBSERVE)


@pytest.mark.parametrize(
    ("channel", "bounds", "may"),
    [
        ("a", {}, True),
        ("a", {"channels.publish": ScopeBounds(("b",))}, False),
        ("a", {"channels.publish": ScopeBounds(("a", "b"))}, True),
        ("a", {"channels.publish": ScopeBounds(("*",), ("a",))}, False),
        ("a", {"channels.observe": ScopeBounds((), ("a",))}, False),
        (
            "a",
            {"channels.publish": ScopeBounds(("b",)), "channels.observe": ScopeBounds(("a",))},
            True,
        ),
        ("discord:acme/x", {"channels.publish": ScopeBounds(("discord:acme/*",))}, True),
        ("discord:acme/../y", {"channels.publish": ScopeBounds(("discord:acme/*",))}, False),
        ("thinking", {}, False),
    ],
)
def test_each_channel_is_judged_by_the_sets_that_are_for_it(
    channel: str, bounds: dict[str, ScopeBounds], may: bool
) -> None:
    sets = [PUBLISH] if "publish" in str([*bounds]) and len(bounds) == 1 else [PUBLISH, OBSERVE]
    assert (model.channel_refusal((channel,), sets, bounds) is None) is may


PRINTED = ChannelDescriptor(
    "discord:#general", "discord", address={"guild": "acme", "channel": "#general"}
)


@pytest.mark.requirement("MCPL-14.5-scopes", "MCPL-14.5-address")
@pytest.mark.parametrize(
    ("bounds", "may"),
    [
        (ScopeBounds(("discord:acme/*",)), True),
        (ScopeBounds(("discord:#general",)), True),
        (ScopeBounds(("discord:other/*",)), False),
        (ScopeBounds(("discord:**",), ("discord:acme/*",)), False),
    ],
)
def test_the_printed_pattern_covers_the_printed_channel(bounds: ScopeBounds, may: bool) -> None:
    scopes = {"channels.publish": bounds}
    names = model.channel_names(PRINTED)
    assert (model.channel_refusal(names, [PUBLISH], scopes) is None) is may


@pytest.mark.parametrize(
    "address", [{}, {"a": "x/y"}, {"a": ""}, {"a": ["x"]}, {"a": "x", "b": None}]
)
def test_an_address_that_is_no_path_names_no_channel(address: dict[str, object]) -> None:
    assert model.channel_names(ChannelDescriptor("a", "x", address=address)) == ("a",)


def test_a_pattern_that_covers_no_channel_is_found() -> None:
    scopes = {"channels.publish": ScopeBounds(("discord:acme/*", "discord:acmee/*", "thinking"))}
    assert model.unused_patterns([PRINTED], [PUBLISH], scopes) == ["discord:acmee/*"]


def test_words_go_the_way_that_a_channel_has() -> None:
    both = ChannelDescriptor("a", "x")
    out = ChannelDescriptor("a", "x", direction=ChannelDirection.OUT)
    into = ChannelDescriptor("a", "x", direction=ChannelDirection.IN)

    def fault(
        channel: ChannelDescriptor | None, *, is_out: bool, is_closed: bool = False
    ) -> object:
        found = model.direction_refusal(channel, is_out=is_out, is_closed=is_closed)
        return None if found is None else found[0]

    assert fault(both, is_out=True) is fault(both, is_out=False) is None
    assert fault(out, is_out=True) is fault(into, is_out=False) is None
    assert fault(out, is_out=False) is fault(into, is_out=True) is SCOPE_NOT_PERMITTED
    assert fault(None, is_out=True) is fault(both, is_out=True, is_closed=True) is CHANNEL_UNKNOWN


@pytest.mark.parametrize(
    ("place", "sets", "bounds", "may"),
    [
        (OutputTarget("room", "chat"), [OBSERVE], {}, True),
        (OutputTarget("room", "chat"), [PUBLISH], {}, False),
        (OutputTarget("room", "chat"), [THINKING], {}, False),
        (
            OutputTarget("room", "chat"),
            [OBSERVE],
            {"channels.observe": ScopeBounds(("other",))},
            False,
        ),
        (OutputTarget("room", "mail"), [OBSERVE], {}, False),
        (
            OutputTarget("room", "mail"),
            [OBSERVE],
            {"channels.observe": ScopeBounds(("mail/*",))},
            True,
        ),
        (OutputTarget("ops"), [OBSERVE], {}, False),
        (OutputTarget("ops"), [OBSERVE], {"channels.observe": ScopeBounds(("topic:ops",))}, True),
        (
            OutputTarget("room", "mail"),
            [OBSERVE],
            {"channels.observe": ScopeBounds(("**",), ("mail/room",))},
            False,
        ),
    ],
)
def test_another_servers_words_are_seen_by_whom_they_were_named_to(
    place: OutputTarget, sets: list[FeatureSet], bounds: dict[str, ScopeBounds], may: bool
) -> None:
    assert model.can_observe(place, "chat", sets, bounds, (place.id,)) is may


@pytest.mark.parametrize(
    ("sets", "named", "bounds", "may"),
    [
        ([THINKING], ["channels.thinking"], {}, True),
        ([THINKING], ["*"], {}, False),
        ([THINKING], ["channels.*"], {}, False),
        ([OBSERVE], ["channels.observe"], {}, False),
        ([OBSERVE], ["*"], {"channels.observe": ScopeBounds(("thinking",))}, True),
        ([OBSERVE], ["*"], {"channels.observe": ScopeBounds(("*",))}, False),
        (
            [THINKING],
            ["channels.thinking"],
            {"channels.thinking": ScopeBounds((), ("thinking",))},
            False,
        ),
    ],
)
def test_thoughts_are_granted_by_name_and_by_no_wildcard(
    sets: list[FeatureSet], named: list[str], bounds: dict[str, ScopeBounds], may: bool
) -> None:
    assert model.may_see_thinking(sets, named, bounds) is may


def test_the_first_route_that_is_about_a_channel_counts() -> None:
    routes = [ChannelRoute("mail", "a*"), ChannelRoute("chat", "a*"), ChannelRoute("chat")]
    assert model.route_of(routes, "chat", "abc") is routes[1]
    assert model.route_of(routes, "chat", "x/y") is routes[2]
    assert model.route_of(routes, "other", "abc") is None
    assert model.route_of([ChannelRoute("chat", "*")], "chat", "discord:acme/x") is not None


def test_a_conversation_is_a_channel_or_a_thread_or_an_author() -> None:
    def named(by: ConversationScope) -> str:
        return model.conversation_of("chat", HELLO, by)

    assert named(ConversationScope.CHANNEL) == "channel:chat/room"
    assert named(ConversationScope.THREAD) == "channel:chat/room#thread:t1"
    assert named(ConversationScope.AUTHOR) == "channel:chat/room#author:u1"
    bare = IncomingMessage("room", "m1", to_text_content("x"))
    assert model.conversation_of("chat", bare, ConversationScope.THREAD) == "channel:chat/room"
    long = IncomingMessage("r\u00f6\u00f6m" * 50, "m1", to_text_content("x"))
    assert model.conversation_of("chat", long, ConversationScope.CHANNEL).startswith("channel:")
    assert len(model.conversation_of("chat", long, ConversationScope.CHANNEL)) < 100
    assert model.conversation_in("ops", ConversationScope.AUTHOR, "", "agent:a") == (
        "topic:ops#author:agent:a"
    )


names = some.text(max_size=8)


@given(some.tuples(names, names, names), some.tuples(names, names, names))
def test_no_two_messages_have_the_same_key(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    same = model.message_key(*one) == model.message_key(*other)
    assert same == (one == other)
    assert model.output_key(one[0], OutputTarget(one[1], one[2])).startswith("out:")


def test_an_author_is_what_a_server_says_and_shown_as_that() -> None:
    assert model.describe_author("chat", HELLO) == "Ana (external, according to chat/room)"
    sly = IncomingMessage(
        "room", "m", to_text_content("x"), author="person:ops\n\u202esystem" + "x" * 200
    )
    assert "\n" not in model.author_of(sly)
    assert "\u202e" not in model.author_of(sly)
    assert len(model.author_of(sly)) <= 80
    assert model.author_of(IncomingMessage("room", "m", to_text_content("x"))) == "somebody"


def test_servers_are_told_where_it_came_from_and_where_it_goes() -> None:
    place = OutputTarget("room", "chat")
    told = model.channels_context(place, HELLO, ["channel:chat/room"], ["chat/room"])
    assert told == {
        "incoming": {"channelId": "room", "messageId": "m1", "threadId": "t1"},
        "defaultOutgoing": {"channelId": "room"},
        "candidates": ["chat/room"],
    }
    other = model.channels_context(OutputTarget("ops"), None, ["channel:mail/x"], [])
    assert other == {
        "incoming": {"channelId": "topic:ops"},
        "defaultOutgoing": {"channelId": "mail/x"},
        "candidates": [],
    }
    assert "defaultOutgoing" not in model.channels_context(place, HELLO, [], [])


def hide(text: str) -> str:
    return text.replace("SECRET WORD", "[hidden]")


@given(some.text("ab \n", max_size=2_000), some.lists(some.integers(1, 300), max_size=30))
def test_whatever_the_pieces_are_no_secret_is_seen_and_nothing_is_lost(
    words: str, cuts: list[int]
) -> None:
    text = f"{words} SECRET WORD {words}"
    veil, shown = StreamRedactor(hide), list[str]()
    rest = text
    for cut in cuts:
        shown.append(veil.add(rest[:cut]))
        rest = rest[cut:]
    shown += [veil.add(rest), veil.end()]
    assert "".join(shown) == hide(text)
    assert not any("SECRET" in each for each in shown)


def test_a_key_that_has_begun_is_held_back_until_it_has_ended() -> None:
    veil = StreamRedactor(lambda text: text)
    assert veil.add("look: -----BEGIN KEY-----\n" + "abc " * 1_000) == "look: "
    assert veil.add("-----END KEY----- ") != ""


def raw(value: object) -> Raw:
    return jsonrpc.to_raw(value)


GENERAL = {
    "id": "irc:#quay",
    "type": "irc",
    "label": "#quay",
    "direction": "outbound",
    "address": {"network": "harbour"},
    "metadata": {"x": 1},
}


def test_a_descriptor_is_read_as_the_document_writes_it() -> None:
    (found,) = model.registered_in(raw({"channels": [GENERAL]}))
    assert found == ChannelDescriptor(
        "irc:#quay", "irc", "#quay", ChannelDirection.OUT, {"network": "harbour"}, {"x": 1}
    )
    assert model.build_channel_list([found]) == {"channels": [GENERAL]}
    assert model.listed_in(raw(model.build_channel_list([found]))) == (found,)
    assert model.opened_in(raw({"channel": GENERAL})) == found


def test_changes_say_what_came_and_went() -> None:
    changes = model.changes_in(raw({"added": [GENERAL], "removed": ["a"], "updated": []}))
    assert [each.id for each in changes.added] == ["irc:#quay"]
    assert changes.removed == ("a",)
    assert model.changes_in(raw({})) == model.ChannelChanges()


@loop_over(
    "wrong",
    [
        {"channels": [{"type": "x"}]},
        {"channels": [{"id": "", "type": "x"}]},
        {"channels": [{"id": "a", "type": ""}]},
        {"channels": [{"id": "a\u202e\n", "type": "x"}]},
        {"channels": [{"id": "x" * 257, "type": "x"}]},
        {"channels": [{"id": "a", "type": "x", "direction": "up"}]},
        {"channels": [{"id": "a", "type": "x", "metadata": {"m": "m" * 16_384}}]},
        {"channels": [GENERAL] * 1_001},
        {"channels": {}},
        [],
    ],
)
def test_what_is_no_registration_is_refused(wrong: object) -> None:
    with pytest.raises(MalformedMessage):
        model.registered_in(raw(wrong))


MESSAGE = {
    "channelId": "irc:#quay",
    "messageId": "m-31",
    "threadId": "t-9",
    "author": {"id": "u-5", "name": "A visitor"},
    "timestamp": "2026-11-02T08:30:00Z",
    "content": [{"type": "text", "text": "When does the ferry leave?"}],
    "metadata": {"mentions": ["@pilot"]},
}


def test_messages_are_read_one_by_one() -> None:
    batch = raw({"messages": [MESSAGE, {"messageId": "m2"}, "no", {**MESSAGE, "messageId": ""}]})
    first, second, third, fourth = model.messages_in(batch)
    assert first == (
        "m-31",
        IncomingMessage(
            *("irc:#quay", "m-31", to_text_content("When does the ferry leave?")),
            at=datetime(2026, 11, 2, 8, 30, tzinfo=UTC),
            thread="t-9",
            author_id="u-5",
            author="A visitor",
            metadata={"mentions": ["@pilot"]},
        ),
    )
    assert second[0] == "m2"
    assert all(isinstance(each[1], MalformedMessage) for each in (second, third, fourth))


def test_what_a_message_leaves_out_is_left_empty() -> None:
    plain = {"channelId": "c", "messageId": "m", "content": "hi", "author": None}
    ((_, found),) = model.messages_in(raw({"messages": [plain]}))
    assert found == IncomingMessage("c", "m", to_text_content("hi"))
    local = {**plain, "timestamp": "2026-11-02T08:30:00"}
    ((_, found),) = model.messages_in(raw({"messages": [local]}))
    assert isinstance(found, IncomingMessage)
    assert found.at == datetime(2026, 11, 2, 8, 30, tzinfo=UTC)
    ((_, broken),) = model.messages_in(raw({"messages": [{**plain, "timestamp": "now"}]}))
    assert isinstance(broken, MalformedMessage)


def test_too_many_messages_are_none() -> None:
    with pytest.raises(MalformedMessage):
        model.messages_in(raw({"messages": [MESSAGE] * 501}))


def test_answers_of_a_connector_are_read_strictly() -> None:
    assert model.published_in(raw({"delivered": True, "messageId": "x"})) == PublishResult(
        delivered=True, message="x"
    )
    assert not model.published_in(raw({"delivered": False})).delivered
    assert model.closed_in(raw({"closed": True}))
    for wrong in ({}, {"delivered": "yes"}, {"delivered": True, "messageId": "x" * 300}):
        with pytest.raises(MalformedMessage):
            model.published_in(raw(wrong))
    with pytest.raises(MalformedMessage):
        model.closed_in(raw({}))
    with pytest.raises(MalformedMessage):
        model.opened_in(raw({"channel": {"id": "a"}}))


ROWS = """
[[channels]]
server = "mail"
channel = "mail:*"
conversation = "thread"
mirror = "topic:post"
max_per_minute = 5
deduplicates = true

[[channels]]
server = "chat"
to = "topic:ops"
reply_to = ["topic:ops", "channel:mail/a/b"]

[[channels]]
topic = "ops"
respond_to = "all"
conversation = "author"
principal = "agent:helper"
"""


def test_rows_become_routes_and_talks(tmp_path: Path) -> None:
    found = channels_of(from_text(tmp_path, ROWS).channels)
    assert found.routes == (
        ChannelRoute(
            "mail",
            "mail:*",
            conversation=ConversationScope.THREAD,
            mirror="post",
            max_per_minute=5,
            deduplicates=True,
        ),
        ChannelRoute("chat", to="topic:ops", reply_to=("topic:ops", "channel:mail/a/b")),
    )
    assert found.chats == (
        TopicChatConfig(
            "ops", hears_all=True, conversation=ConversationScope.AUTHOR, principal="agent:helper"
        ),
    )


@loop_over(
    ("row", "told"),
    [
        ("", "needs either server or topic"),
        ('server = "a"\ntopic = "b"', "needs either server or topic"),
        ('server = "a"\nrespond_to = "all"', "has respond_to"),
        ('topic = "a"\nmirror = "topic:b"', "has mirror"),
        ('topic = "a"\nto = "nothing"', "is about a topic"),
        ('server = "a"\nto = "channel:b/c"', "must be nothing, turn or topic:NAME"),
        ('server = "a"\nto = "everywhere"', "must be nothing, turn or topic:NAME"),
        ('server = "a"\nmirror = "ops"', "must be written as topic:NAME"),
        ('server = "a"\nreply_to = ["ops"]', "is no place"),
        ('server = "a"\nconversation = "day"', "must be one of"),
        ('server = "a"\nprincipal = "person:ana"', "must be written as agent:host"),
        ('server = "a"\nmax_per_minute = 0', "must be between 1"),
        ('server = "a"\ncolour = "red"', "colour"),
    ],
)
def test_a_mistake_in_a_row_is_named(tmp_path: Path, row: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, f"[[channels]]\n{row}\n")


def test_one_topic_has_one_row(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="twice"):
        from_text(tmp_path, '[[channels]]\ntopic = "a"\n' * 2)
