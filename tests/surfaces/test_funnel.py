"""How the calls of one client share its only stream, its bounds included."""

from unittest.mock import patch

from comity.kernel import outbox
from comity.kernel.outbox import Outbox
from comity.surfaces.funnel import Funnel


def test_every_inlet_leads_to_the_one_stream_in_order() -> None:
    stream = Outbox()
    funnel = Funnel(stream)
    first, second = funnel.inlet(), funnel.inlet()
    assert first.put(b"1")
    assert second.put(b"2")
    first.finish(b"3")
    assert stream.take() == [b"1", b"2", b"3"]
    assert not stream.final


def test_a_finished_inlet_says_nothing_more_and_is_forgotten() -> None:
    stream = Outbox()
    funnel = Funnel(stream)
    inlet = funnel.inlet()
    inlet.finish(b"answer")
    inlet.finish(b"again")
    assert not inlet.put(b"late")
    assert stream.take() == [b"answer"]
    assert len(funnel) == 0


def test_every_source_pauses_while_the_stream_is_half_full_also_one_that_comes_later() -> None:
    with patch.object(outbox, "MOST_FRAMES", 4), patch.object(Outbox, "pause_frames", 2):
        stream = Outbox()
        funnel = Funnel(stream)
        told: list[tuple[str, bool]] = []
        first, silent = funnel.inlet(), funnel.inlet()
        first.throttle = lambda paused: told.append(("first", paused))
        silent.throttle = lambda paused: told.append(("silent", paused))
        for _ in range(3):
            first.put(b"x")
        assert sorted(told) == [("first", True), ("silent", True)]
        later = funnel.inlet()
        later.throttle = lambda paused: told.append(("later", paused))
        later.put(b"y")
        stream.take()
        assert sorted(told[2:]) == [
            ("first", False),
            ("later", False),
            ("later", True),
            ("silent", False),
        ]


def test_an_answer_without_room_overruns_the_stream() -> None:
    with patch.object(outbox, "MOST_FRAMES", 1):
        stream = Outbox()
        funnel = Funnel(stream)
        funnel.inlet().finish(b"1")
        inlet = funnel.inlet()
        inlet.finish(b"2")
        assert stream.overrun
        assert stream.final
        assert inlet.final


def test_an_inlet_of_a_stream_that_ended_is_not_called_overrun() -> None:
    stream = Outbox()
    inlet = Funnel(stream).inlet()
    stream.end()
    assert not inlet.put(b"x")
    assert inlet.final
    assert not inlet.overrun
