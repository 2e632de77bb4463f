"""Wrong credentials of one sender stop nobody else's right ones, whatever stands between them."""

from collections.abc import AsyncGenerator

import pytest

from tests.support.admitted import Admitted, admitting
from tests.support.credentials import GivenOut, bearer

PROXY = "127.0.0.1"
FLOOD = 60


@pytest.fixture
async def scene() -> AsyncGenerator[Admitted]:
    async with admitting(trusted_proxies=(f"{PROXY}/32",)) as admitted:
        yield admitted


async def status(scene: Admitted, key: str, forwarded: str = "") -> int:
    headers = [*bearer(key).items(), *([("x-forwarded-for", forwarded)] if forwarded else [])]
    return (await scene.come().send("GET", headers, path="/api/tools")).status


async def flood(scene: Admitted, forwarded: str = "") -> list[int]:
    wrong = GivenOut()
    return [await status(scene, wrong.give("agent:stranger"), forwarded) for _ in range(FLOOD)]


async def test_a_right_key_is_never_refused_for_the_wrong_ones_of_its_address(
    scene: Admitted,
) -> None:
    statuses = await flood(scene)
    assert (statuses[0], statuses[-1]) == (401, 429)
    for number in range(4):
        # None of these was shown before the flood.
        assert await status(scene, scene.given_out.give(f"agent:good{number}")) == 200
    stranger = GivenOut().give("agent:stranger")
    assert await status(scene, stranger) == 429


async def test_senders_behind_a_trusted_proxy_are_counted_apart(scene: Admitted) -> None:
    assert (await flood(scene, "198.51.100.7"))[-1] == 429
    wrong = GivenOut().give("agent:stranger")
    assert await status(scene, wrong, "198.51.100.7") == 429
    assert await status(scene, wrong, "198.51.100.8") == 401
    assert await status(scene, wrong) == 401


async def test_a_sender_cannot_invent_addresses_before_its_own(scene: Admitted) -> None:
    wrong = GivenOut().give("agent:stranger")
    statuses = [await status(scene, wrong, f"203.0.113.{n}, 198.51.100.7") for n in range(FLOOD)]
    assert statuses[-1] == 429


async def test_nobody_is_believed_who_is_no_trusted_proxy() -> None:
    async with admitting(trusted_proxies=("192.0.2.0/24",)) as scene:
        wrong = GivenOut().give("agent:stranger")
        statuses = [await status(scene, wrong, f"203.0.113.{n}") for n in range(FLOOD)]
        assert statuses[-1] == 429


@pytest.mark.parametrize("said", ["", ",", "unknown", "\xff\x00"[:1] * 50, "a" * 5000, "1.2.3.4,"])
async def test_an_address_that_cannot_be_read_stops_no_request(scene: Admitted, said: str) -> None:
    good = scene.given_out.give("agent:good")
    for name in ("x-forwarded-for", "forwarded"):
        headers = [*bearer(good).items(), (name, said)]
        assert (await scene.come().send("GET", headers, path="/api/tools")).status == 200
