"""What every bus between nodes promises. (comity.cluster.bus)"""

import asyncio
import contextlib
from collections import defaultdict

import pytest

from comity.cluster.bus import Bus, BusMessage
from comity.errors import MalformedMessage, Unavailable
from tests.contracts.nodes import Nodes, eventually

ENOUGH = 200


async def _know(speaker: Bus, hearer: Bus) -> None:
    """Until what the hearer subscribed to is known wherever the speaker speaks.

    Whatever a node says after it subscribed comes after that subscription, wherever it comes.
    """
    inbox = speaker.inbox()
    told: list[BusMessage] = []
    interest = await speaker.subscribe(inbox, told.append)

    def is_told() -> bool:
        with contextlib.suppress(Unavailable):
            hearer.publish(inbox, b"")
        return bool(told)

    await eventually(is_told)
    await interest.close()


async def _settle(*buses: Bus) -> None:
    """Until all that was said before this has been heard by everybody, or never will be."""
    for speaker in buses:
        for hearer in buses:
            if speaker is not hearer:
                subject = speaker.inbox()
                told: list[BusMessage] = []
                interest = await hearer.subscribe(subject, told.append)
                await _know(speaker, hearer)
                speaker.publish(subject, b"")
                await eventually(lambda told=told: bool(told))
                await interest.close()


async def test_others_hear_what_a_node_says_in_its_order(nodes: Nodes) -> None:
    speaker, one, other = await nodes.bus(), await nodes.bus(), await nodes.bus()
    heard: dict[str, list[BusMessage]] = {"one": [], "other": []}
    await one.subscribe("order.it", heard["one"].append)
    await other.subscribe("order.it", heard["other"].append)
    await _settle(speaker, one, other)
    for number in range(ENOUGH):
        speaker.publish("order.it", b"%d" % number)
        if number % 50 == 0:
            await speaker.wait_until_drained()
    await _settle(speaker, one, other)
    said = [BusMessage("order.it", b"%d" % number) for number in range(ENOUGH)]
    assert heard == {"one": said, "other": said}


async def test_a_node_never_hears_itself(nodes: Nodes) -> None:
    speaker, other = await nodes.bus(), await nodes.bus()
    own: list[BusMessage] = []
    await speaker.subscribe("self.>", own.append)
    await _settle(speaker, other)
    speaker.publish("self.it", b"mine")
    other.publish("self.it", b"yours")
    await _settle(speaker, other)
    assert own == [BusMessage("self.it", b"yours")]


async def test_a_subscription_is_in_force_for_whoever_heard_of_it(nodes: Nodes) -> None:
    """What is said in answer to what a node says after it subscribed is heard by it."""
    speaker, other = await nodes.bus(), await nodes.bus()
    heard: list[BusMessage] = []
    await speaker.subscribe("force.go", lambda asked: speaker.publish(asked.reply, b""))
    await _know(other, speaker)
    for number in range(50):
        await other.subscribe(f"force.n{number}", heard.append)
        other.publish("force.go", b"", f"force.n{number}")
    await eventually(lambda: len(heard) == 50)
    assert [each.subject for each in heard] == [f"force.n{number}" for number in range(50)]


@pytest.mark.parametrize(
    ("pattern", "does_hear", "does_not_hear"),
    [
        ("w.a", ["w.a"], ["w", "w.b", "w.a.b", "w.A"]),
        ("w.*", ["w.a", "w.b"], ["w", "w.a.b"]),
        ("w.*.c", ["w.a.c"], ["w.a", "w.c", "w.a.b.c", "w.a.c.d"]),
        ("w.>", ["w.a", "w.a.b", "w.a.b.c"], ["w", "v.a"]),
        ("*.a.>", ["w.a.b"], ["w.a", "w.b.a"]),
    ],
)
async def test_a_star_is_one_part_and_an_arrow_all_that_follow(
    nodes: Nodes, pattern: str, does_hear: list[str], does_not_hear: list[str]
) -> None:
    speaker, other = await nodes.bus(), await nodes.bus()
    heard: list[str] = []
    interest = await other.subscribe(pattern, lambda each: heard.append(each.subject))
    await _know(speaker, other)
    for subject in (*does_not_hear, *does_hear):
        speaker.publish(subject, b"")
    await _settle(speaker, other)
    await interest.close()
    assert heard == does_hear


async def test_each_interest_hears_for_itself_until_it_is_closed(nodes: Nodes) -> None:
    speaker, other = await nodes.bus(), await nodes.bus()
    first: list[BusMessage] = []
    second: list[BusMessage] = []
    interest = await other.subscribe("twice.it", first.append)
    await other.subscribe("twice.*", second.append)
    await _know(speaker, other)
    speaker.publish("twice.it", b"1")
    await _settle(speaker, other)
    await interest.close()
    await interest.close()
    await _know(speaker, other)
    speaker.publish("twice.it", b"2")
    await _settle(speaker, other)
    assert [each.data for each in first] == [b"1"]
    assert [each.data for each in second] == [b"1", b"2"]


async def test_an_answer_finds_the_inbox_that_was_named(nodes: Nodes) -> None:
    asker, other = await nodes.bus(), await nodes.bus()
    answers: list[BusMessage] = []
    inbox = asker.inbox()
    assert inbox != asker.inbox() != other.inbox()
    await asker.subscribe(inbox, answers.append)
    await other.subscribe("ask.it", lambda asked: other.publish(asked.reply, asked.data * 2))
    await _know(asker, other)
    asker.publish("ask.it", b"ab", inbox)
    await eventually(lambda: bool(answers))
    assert answers == [BusMessage(inbox, b"abab")]


@pytest.mark.parametrize("data", [b"", bytes(range(256)), b"\r\nPING\r\n", b"x" * 524_288])
async def test_what_is_heard_is_byte_for_byte_what_was_said(nodes: Nodes, data: bytes) -> None:
    speaker, other = await nodes.bus(), await nodes.bus()
    heard: list[BusMessage] = []
    await other.subscribe("bytes.it", heard.append)
    await _know(speaker, other)
    speaker.publish("bytes.it", data)
    speaker.publish("bytes.it", b"after")
    await eventually(lambda: len(heard) == 2)
    assert [each.data for each in heard] == [data, b"after"]


@pytest.mark.parametrize(
    "subject",
    ["", ".", "a.", ".a", "a..b", "a b", "a\r\nPUB b 0\r\n", "a.*", "a.>", "\u00e4", "a" * 10_000],
)
async def test_what_is_no_subject_is_not_published_on(nodes: Nodes, subject: str) -> None:
    bus = await nodes.bus()
    with pytest.raises(MalformedMessage):
        bus.publish(subject, b"")
    if subject:
        with pytest.raises(MalformedMessage):
            bus.publish("a", b"", subject)


@pytest.mark.parametrize("subject", ["", "a.", "a.>.b", ">.a", "a*", "a.b>", "a\r\nSUB > 1\r\n"])
async def test_what_is_no_pattern_is_not_subscribed_to(nodes: Nodes, subject: str) -> None:
    bus = await nodes.bus()
    with pytest.raises(MalformedMessage):
        await bus.subscribe(subject, lambda _: None)


async def test_one_who_fails_to_take_something_in_keeps_nobody_else_from_it(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    speaker, other = await nodes.bus(), await nodes.bus()
    heard: list[BusMessage] = []

    def fail(_: BusMessage) -> None:
        raise ZeroDivisionError

    await other.subscribe("fail.it", fail)
    await other.subscribe("fail.it", heard.append)
    await _know(speaker, other)
    speaker.publish("fail.it", b"1")
    speaker.publish("fail.it", b"2")
    await eventually(lambda: len(heard) == 2)
    assert [
        bool(each.exc_info) for each in caplog.records if each.name.startswith("comity.cluster.")
    ] == [
        True,
        True,
    ]


async def test_a_bus_that_is_closed_is_unavailable(nodes: Nodes) -> None:
    bus = await nodes.bus()
    assert bus.is_connected
    await bus.close()
    assert not bus.is_connected
    with pytest.raises(Unavailable):
        bus.publish("a", b"")
    with pytest.raises(Unavailable):
        await bus.wait_until_drained()


async def test_through_a_failure_order_holds_and_nothing_comes_twice(nodes: Nodes) -> None:
    """While one node keeps talking, what it depends on fails, and is well again."""
    speaker, other = await nodes.bus(), await nodes.bus()
    heard: dict[str, list[int]] = defaultdict(list)
    own: list[BusMessage] = []
    changes: list[bool] = []
    speaker.watch(changes.append)
    await speaker.subscribe("through.*", own.append)
    await other.subscribe(
        "through.*", lambda each: heard[each.subject].append(int.from_bytes(each.data, "big"))
    )
    said = 0

    async def talk() -> None:
        nonlocal said
        while True:
            with contextlib.suppress(Unavailable):
                speaker.publish(f"through.s{said % 3}", said.to_bytes(4, "big"))
            said += 1
            await asyncio.sleep(0.001)

    talking = asyncio.create_task(talk())
    try:
        await eventually(lambda: len(heard) == 3)
        await nodes.strike(speaker)
        await eventually(lambda: False in changes)
        await nodes.heal()
        await eventually(lambda: speaker.is_connected and other.is_connected)
        mark = said
        await eventually(lambda: any(each[-1] > mark + 10 for each in heard.values()))
    finally:
        talking.cancel()
    await _settle(speaker, other)
    for numbers in heard.values():
        assert numbers == sorted(set(numbers))
    assert own == []
    assert changes == [False, True]


async def test_while_there_is_no_connection_nothing_is_taken_to_be_sent_later(
    nodes: Nodes,
) -> None:
    speaker, other = await nodes.bus(), await nodes.bus()
    heard: list[bytes] = []
    told: list[str] = []

    def changed(is_connected: bool) -> None:
        try:
            speaker.publish("later.it", b"back" if is_connected else b"away")
            told.append("sent")
        except Unavailable as refused:
            told.append("refused" if refused.fault.retryable else "refused for good")

    await other.subscribe("later.it", lambda each: heard.append(each.data))
    await _know(speaker, other)
    speaker.watch(changed)
    await nodes.strike(speaker)
    await eventually(lambda: bool(told))
    await nodes.heal()
    await eventually(lambda: len(told) == 2 and other.is_connected)
    await _settle(speaker, other)
    assert told == ["refused", "sent"]
    assert b"away" not in heard


async def test_who_subscribes_while_cut_off_hears_once_that_is_over(nodes: Nodes) -> None:
    speaker, other = await nodes.bus(), await nodes.bus()
    lost = asyncio.Event()
    other.watch(lambda is_connected: None if is_connected else lost.set())
    heard: list[BusMessage] = []
    await nodes.strike(other)
    async with asyncio.timeout(30):
        await lost.wait()
    await other.subscribe("cut.it", heard.append)
    await nodes.heal()
    await eventually(lambda: speaker.is_connected and other.is_connected)
    await _settle(speaker, other)
    speaker.publish("cut.it", b"now")
    await eventually(lambda: bool(heard))
