"""A crowd counts what each of its members is given, and says so when something is missing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import crowd as crowds
from bench.crowd import LENGTH, Crowd, Lost, envelope
from bench.topic_servers import COMITY, NATS, WEBSOCKETS, Server, started


@pytest.fixture(params=[WEBSOCKETS, NATS, COMITY])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with started(request.param, tmp_path) as found:
        yield found


def test_everything_that_is_said_is_counted_at_each_member(server: Server) -> None:
    crowd = Crowd(server.door, server.cpu)
    try:
        crowd.grow(3)
        crowd.grow(5)
        whole = crowd.saturate(0.0, 40)
        assert (whole.said, whole.deliveries) == (40, 200)
        assert whole.server_cpu_seconds > 0
        steady = crowd.talk(0.1, 50)
        assert (steady.said, steady.deliveries, len(steady.latencies)) == (5, 25, 25)
        assert min(steady.latencies) > 0
    finally:
        crowd.close()


def test_who_is_not_concerned_is_given_nothing(tmp_path: Path) -> None:
    with started(COMITY, tmp_path) as server:
        crowd = Crowd(server.door, server.cpu)
        try:
            crowd.grow(2)
            crowd.grow(4, is_directed=True)
            assert crowd.saturate(0.0, 10, b"local:m1").deliveries == 20
            # All of them are given what is for all: a settled crowd has been.
            crowd.settle()
        finally:
            crowd.close()


def test_a_crowd_that_is_not_given_everything_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowds, "WITHIN_SECONDS", 2.0)
    with started(NATS, tmp_path) as server:
        crowd = Crowd(server.door, server.cpu)
        try:
            crowd.grow(1)
            with pytest.raises(Lost, match="1 of 2 members"):
                crowd.grow(2, is_directed=True)
        finally:
            crowd.close()


@pytest.mark.parametrize("to", [b"", b"local:m1"], ids=["to all", "to one"])
def test_all_envelopes_are_of_one_length(to: bytes) -> None:
    first, last = envelope(1, to), envelope(10**9, to)
    assert len(first) == len(last) == LENGTH
    assert json.loads(first)["id"] != json.loads(last)["id"]
