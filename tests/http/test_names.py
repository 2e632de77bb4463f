"""What names resolve to, asked of the system and kept for a short while."""

import asyncio

import pytest

from comity.http.client import dial
from comity.http.client.dial import CACHE_SECONDS, Resolver


async def test_a_name_is_resolved_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def answers(host: str, *_: object, **__: object) -> list[object]:
        asked.append(host)
        return [(0, 0, 0, "", ("93.184.216.34", 0)), (0, 0, 0, "", ("93.184.216.34", 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", answers, raising=False)
    clock = [0.0]
    resolver = Resolver(lambda: clock[0])
    assert await resolver.resolve("a.example.org") == ("93.184.216.34",)
    assert await resolver.resolve("a.example.org") == ("93.184.216.34",)
    assert asked == ["a.example.org"]
    clock[0] = CACHE_SECONDS + 1
    await resolver.resolve("a.example.org")
    assert len(asked) == 2


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answers(*_: object, **__: object) -> list[object]:
        return [(0, 0, 0, "", ("93.184.216.34", 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", answers, raising=False)
    monkeypatch.setattr(dial, "MOST_KEPT", 2)
    resolver = Resolver(lambda: 0.0)
    for number in range(5):
        await resolver.resolve(f"a{number}.example.org")
    assert len(resolver._cache) == 2  # pyright: ignore[reportPrivateUsage]


async def test_no_answer_in_time_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> list[object]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never, raising=False)
    monkeypatch.setattr(dial, "DEADLINE_SECONDS", 0.01)
    assert await Resolver(lambda: 0.0).resolve("a.example.org") == ()


async def test_the_systems_own_resolver_is_asked() -> None:
    answers = await Resolver(lambda: 0.0).resolve("localhost")
    assert set(answers) <= {"127.0.0.1", "::1"}
    assert answers
