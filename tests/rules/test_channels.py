"""Who may use which channel, where messages go, what they are called, and what observers see."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from comity.rules import channels
from comity.rules.channels import Grouping, Place, Route, Veil
from comity.wire.channels import Descriptor, Direction, Incoming
from comity.wire.contents import said
from comity.wire.errors import CHANNEL_UNKNOWN, SCOPE_NOT_PERMITTED, MalformedMessage
from comity.wire.features import Bounds, FeatureSet, Use

PUBLISH = FeatureSet("channels.publish", "", frozenset({Use.PUBLISH}))
OBSERVE = FeatureSet("channels.observe", "", frozenset({Use.OBSERVE}))
THINKING = FeatureSet("channels.thinking", "", frozenset({Use.OBSERVE}))
HELLO = Incoming("room", "m1", said("hello"), thread="t1", author_id="u1", author="Ana")


@pytest.mark.parametrize("text", ["topic:ops", "channel:mail/inbox", "channel:mail/a/b:c"])
def test_a_place_is_written_as_it_is_read(text: str) -> None:
    assert str(channels.place_in(text)) == text


@pytest.mark.parametrize("text", ["", "ops", "topic:", "topic:a b", "channel:mail", "channel:/x"])
def test_what_names_no_place_is_none(text: str) -> None:
    with pytest.raises(MalformedMessage):
        channels.place_in(text)


def test_a_use_needs_a_set_that_is_for_it() -> None:
    assert channels.require([PUBLISH, OBSERVE], Use.OBSERVE) == [OBSERVE]
    assert channels.require([PUBLISH], *channels.EITHER) == [PUBLISH]
    with pytest.raises(MalformedMessage, match="observe"):
        channels.require([PUBLISH], Use.OBSERVE)


@pytest.mark.parametrize(
    ("channel", "bounds", "may"),
    [
        ("a", {}, True),
        ("a", {"channels.publish": Bounds(("b",))}, False),
        ("a", {"channels.publish": Bounds(("a", "b"))}, True),
        ("a", {"channels.publish": Bounds(("*",), ("a",))}, False),
        ("a", {"channels.observe": Bounds((), ("a",))}, False),
        ("a", {"channels.publish": Bounds(("b",)), "channels.observe": Bounds(("a",))}, True),
        ("discord:acme/x", {"channels.publish": Bounds(("discord:acme/*",))}, True),
        ("discord:acme/../y", {"channels.publish": Bounds(("discord:acme/*",))}, False),
        ("thinking", {}, False),
    ],
)
def test_each_channel_is_judged_by_the_sets_that_are_for_it(
    channel: str, bounds: dict[str, Bounds], may: bool
) -> None:
    sets = [PUBLISH] if "publish" in str([*bounds]) and len(bounds) == 1 else [PUBLISH, OBSERVE]
    assert (channels.why_not(channel, sets, bounds) is None) is may


def test_words_go_the_way_that_a_channel_has() -> None:
    both = Descriptor("a", "x")
    out = Descriptor("a", "x", direction=Direction.OUT)
    into = Descriptor("a", "x", direction=Direction.IN)

    def fault(channel: Descriptor | None, *, is_out: bool, is_closed: bool = False) -> object:
        found = channels.why_not_towards(channel, is_out=is_out, is_closed=is_closed)
        return None if found is None else found[0]

    assert fault(both, is_out=True) is fault(both, is_out=False) is None
    assert fault(out, is_out=True) is fault(into, is_out=False) is None
    assert fault(out, is_out=False) is fault(into, is_out=True) is SCOPE_NOT_PERMITTED
    assert fault(None, is_out=True) is fault(both, is_out=True, is_closed=True) is CHANNEL_UNKNOWN


@pytest.mark.parametrize(
    ("place", "sets", "bounds", "may"),
    [
        (Place("room", "chat"), [OBSERVE], {}, True),
        (Place("room", "chat"), [PUBLISH], {}, False),
        (Place("room", "chat"), [THINKING], {}, False),
        (Place("room", "chat"), [OBSERVE], {"channels.observe": Bounds(("other",))}, False),
        (Place("room", "mail"), [OBSERVE], {}, False),
        (Place("room", "mail"), [OBSERVE], {"channels.observe": Bounds(("mail/*",))}, True),
        (Place("ops"), [OBSERVE], {}, False),
        (Place("ops"), [OBSERVE], {"channels.observe": Bounds(("topic:ops",))}, True),
        (
            Place("room", "mail"),
            [OBSERVE],
            {"channels.observe": Bounds(("**",), ("mail/room",))},
            False,
        ),
    ],
)
def test_another_servers_words_are_seen_by_whom_they_were_named_to(
    place: Place, sets: list[FeatureSet], bounds: dict[str, Bounds], may: bool
) -> None:
    assert channels.sees(place, "chat", sets, bounds) is may


@pytest.mark.parametrize(
    ("sets", "named", "bounds", "may"),
    [
        ([THINKING], ["channels.thinking"], {}, True),
        ([THINKING], ["*"], {}, False),
        ([THINKING], ["channels.*"], {}, False),
        ([OBSERVE], ["channels.observe"], {}, False),
        ([OBSERVE], ["*"], {"channels.observe": Bounds(("thinking",))}, True),
        ([OBSERVE], ["*"], {"channels.observe": Bounds(("*",))}, False),
        (
            [THINKING],
            ["channels.thinking"],
            {"channels.thinking": Bounds((), ("thinking",))},
            False,
        ),
    ],
)
def test_thoughts_are_granted_by_name_and_by_no_wildcard(
    sets: list[FeatureSet], named: list[str], bounds: dict[str, Bounds], may: bool
) -> None:
    assert channels.sees_thoughts(sets, named, bounds) is may


def test_the_first_route_that_is_about_a_channel_counts() -> None:
    routes = [Route("mail", "a*"), Route("chat", "a*"), Route("chat")]
    assert channels.route_of(routes, "chat", "abc") is routes[1]
    assert channels.route_of(routes, "chat", "x/y") is routes[2]
    assert channels.route_of(routes, "other", "abc") is None


def test_a_conversation_is_a_channel_or_a_thread_or_an_author() -> None:
    def named(by: Grouping) -> str:
        return channels.conversation_of("chat", HELLO, by)

    assert named(Grouping.CHANNEL) == "channel:chat/room"
    assert named(Grouping.THREAD) == "channel:chat/room#thread:t1"
    assert named(Grouping.AUTHOR) == "channel:chat/room#author:u1"
    bare = Incoming("room", "m1", said("x"))
    assert channels.conversation_of("chat", bare, Grouping.THREAD) == "channel:chat/room"
    long = Incoming("r\u00f6\u00f6m" * 50, "m1", said("x"))
    assert channels.conversation_of("chat", long, Grouping.CHANNEL).startswith("channel:")
    assert len(channels.conversation_of("chat", long, Grouping.CHANNEL)) < 100
    assert channels.conversation_in("ops", Grouping.AUTHOR, "", "agent:a") == (
        "topic:ops#author:agent:a"
    )


names = some.text(max_size=8)


@given(some.tuples(names, names, names), some.tuples(names, names, names))
def test_no_two_messages_have_the_same_key(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    same = channels.message_key(*one) == channels.message_key(*other)
    assert same == (one == other)
    assert channels.saying_key(one[0], Place(one[1], one[2])).startswith("out:")


def test_an_author_is_what_a_server_says_and_shown_as_that() -> None:
    assert channels.attributed("chat", HELLO) == "Ana (outside, as chat/room says)"
    sly = Incoming("room", "m", said("x"), author="person:ops\n\u202esystem" + "x" * 200)
    assert "\n" not in channels.author_of(sly)
    assert "\u202e" not in channels.author_of(sly)
    assert len(channels.author_of(sly)) <= 80
    assert channels.author_of(Incoming("room", "m", said("x"))) == "somebody"


def test_servers_are_told_where_it_came_from_and_where_it_goes() -> None:
    place = Place("room", "chat")
    told = channels.channels_context(place, HELLO, ["channel:chat/room"], ["chat/room"])
    assert told == {
        "incoming": {"channelId": "room", "messageId": "m1", "threadId": "t1"},
        "defaultOutgoing": {"channelId": "room"},
        "candidates": ["chat/room"],
    }
    other = channels.channels_context(Place("ops"), None, ["channel:mail/x"], [])
    assert other == {
        "incoming": {"channelId": "topic:ops"},
        "defaultOutgoing": {"channelId": "mail/x"},
        "candidates": [],
    }
    assert "defaultOutgoing" not in channels.channels_context(place, HELLO, [], [])


def hide(text: str) -> str:
    return text.replace("SECRET WORD", "[hidden]")


@given(some.text("ab \n", max_size=2_000), some.lists(some.integers(1, 300), max_size=30))
def test_whatever_the_pieces_are_no_secret_is_seen_and_nothing_is_lost(
    words: str, cuts: list[int]
) -> None:
    text = f"{words} SECRET WORD {words}"
    veil, shown = Veil(hide), list[str]()
    rest = text
    for cut in cuts:
        shown.append(veil.add(rest[:cut]))
        rest = rest[cut:]
    shown += [veil.add(rest), veil.end()]
    assert "".join(shown) == hide(text)
    assert not any("SECRET" in each for each in shown)


def test_a_key_that_has_begun_is_held_back_until_it_has_ended() -> None:
    veil = Veil(lambda text: text)
    assert veil.add("look: -----BEGIN KEY-----\n" + "abc " * 1_000) == "look: "
    assert veil.add("-----END KEY----- ") != ""
