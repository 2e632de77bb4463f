"""The keys of an issuer: found, fetched within bounds, kept and rotated."""

import asyncio
import time
from collections.abc import Generator
from typing import Any

import pytest

from comity.errors import POLICY_UNKNOWN, Unavailable
from comity.http.client.client import MAX_FETCHED_BYTES, fetch_json
from comity.identity.authentication import TokenIssuer
from comity.identity.oauth import FRESH_SECONDS, LOOK_EVERY_SECONDS, STALE_SECONDS, KeySet
from tests.support.clock import ManualClock
from tests.support.issuing import AUDIENCE, IssuersDesk, IssuerServer, SigningKey, issuing

FIRST, SECOND = SigningKey("first"), SigningKey("second")


@pytest.fixture
def server() -> Generator[IssuerServer]:
    with issuing(FIRST) as server:
        yield server


def keys_of(server: IssuerServer, clock: ManualClock[float], **chosen: str) -> KeySet:
    return KeySet(TokenIssuer(server.url, AUDIENCE, **chosen), clock)  # type: ignore[arg-type]


async def test_keys_are_found_by_the_metadata_of_the_issuer(server: IssuerServer) -> None:
    assert await keys_of(server, ManualClock(0.0)).find("first", "RS256")
    assert server.asked == ["/.well-known/oauth-authorization-server", "/keys"]


async def test_metadata_of_openid_connect_does_as_well(server: IssuerServer) -> None:
    oauth = "/.well-known/oauth-authorization-server"
    server.answers["/.well-known/openid-configuration"] = server.answers.pop(oauth)
    assert await keys_of(server, ManualClock(0.0)).find("first", "RS256")


async def test_an_address_of_the_keys_that_was_written_down_is_taken(server: IssuerServer) -> None:
    assert await keys_of(server, ManualClock(0.0), jwks_url=f"{server.url}/keys").find(
        "first", "RS256"
    )
    assert server.asked == ["/keys"]


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "https://elsewhere.org"},
        {"jwks_uri": "http://127.0.0.1:9/keys"},
        {"jwks_uri": "http://169.254.169.254/latest/meta-data"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
    ],
    ids=str,
)
async def test_metadata_leads_nowhere_but_to_the_issuer(
    server: IssuerServer, changed: dict[str, Any]
) -> None:
    server.answers["/.well-known/oauth-authorization-server"] |= changed
    with pytest.raises(Unavailable) as problem:
        await keys_of(server, ManualClock(0.0)).find("first", "RS256")
    assert problem.value.fault is POLICY_UNKNOWN
    assert "/keys" not in server.asked


async def test_an_issuer_in_tls_names_no_keys_outside_of_it() -> None:
    asked: list[str] = []

    async def fetching(url: str) -> dict[str, Any]:
        asked.append(url)
        return {"issuer": "https://issuer.example", "jwks_uri": "http://issuer.example/keys"}

    keys = KeySet(TokenIssuer("https://issuer.example", AUDIENCE), ManualClock(0.0), fetching)
    with pytest.raises(Unavailable):
        await keys.find("first", "RS256")
    assert "http://issuer.example/keys" not in asked


async def test_many_who_ask_at_once_cause_one_look(server: IssuerServer) -> None:
    keys = keys_of(server, ManualClock(0.0))
    found = await asyncio.gather(*(keys.find("first", "RS256") for _ in range(50)))
    assert all(found)
    assert server.asked.count("/keys") == 1


async def test_a_new_key_is_found_by_one_look_and_the_old_one_goes(server: IssuerServer) -> None:
    clock = ManualClock(0.0)
    keys = keys_of(server, clock)
    assert await keys.find("first", "RS256")
    server.keys = [SECOND]
    clock.now += LOOK_EVERY_SECONDS + 1
    assert await keys.find("second", "RS256")
    assert await keys.find("first", "RS256") is None
    assert server.asked.count("/keys") == 2


async def test_keys_that_nobody_has_cause_one_look_in_a_while(server: IssuerServer) -> None:
    clock = ManualClock(0.0)
    keys = keys_of(server, clock)
    for number in range(100):
        assert await keys.find(f"none-{number}", "RS256") is None
    assert server.asked.count("/keys") == 1
    clock.now += LOOK_EVERY_SECONDS + 1
    for number in range(100):
        assert await keys.find(f"none-{number}", "RS256") is None
    assert server.asked.count("/keys") == 2


async def test_keys_are_fetched_again_while_the_old_ones_serve(server: IssuerServer) -> None:
    clock = ManualClock(0.0)
    keys = keys_of(server, clock)
    assert await keys.find("first", "RS256")
    server.keys = [FIRST, SECOND]
    clock.now += FRESH_SECONDS + 1
    assert await keys.find("first", "RS256")
    async with asyncio.timeout(20):
        while server.asked.count("/keys") < 2:
            await asyncio.sleep(0.01)


async def test_an_issuer_that_is_away_is_trusted_for_an_hour(server: IssuerServer) -> None:
    clock = ManualClock(0.0)
    keys = keys_of(server, clock)
    assert await keys.find("first", "RS256")
    server.answers.clear()
    clock.now += STALE_SECONDS - 1
    assert await keys.find("first", "RS256")
    clock.now += LOOK_EVERY_SECONDS + 2
    with pytest.raises(Unavailable) as problem:
        await keys.find("first", "RS256")
    assert problem.value.fault is POLICY_UNKNOWN


async def test_a_weak_key_and_one_for_encryption_do_not_count(server: IssuerServer) -> None:
    weak = SigningKey("weak", bits=1024)
    server.keys = [weak]
    assert await keys_of(server, ManualClock(0.0)).find("weak", "RS256") is None
    secret = {"kty": "oct", "k": "AAAA", "kid": "oct"}
    closed = {**FIRST.jwk, "use": "enc"}
    server.answers["/keys"] = {"keys": [secret, closed, 7, {"kty": "RSA", "kid": "bare"}]}
    keys = keys_of(server, ManualClock(0.0))
    for kid in ("oct", "first", "bare"):
        assert await keys.find(kid, "RS256") is None


async def test_a_token_without_a_key_id_is_for_the_only_key(server: IssuerServer) -> None:
    assert await keys_of(server, ManualClock(0.0)).find(None, "RS256")
    server.keys = [FIRST, SECOND]
    assert await keys_of(server, ManualClock(0.0)).find(None, "RS256") is None


def _redirect(handler: IssuersDesk) -> None:
    handler.send_response(302)
    handler.send_header("location", "/elsewhere")
    handler.end_headers()


def _huge(handler: IssuersDesk) -> None:
    handler.say(b'{"keys": [' + b" " * MAX_FETCHED_BYTES + b"]}")


def _drip(handler: IssuersDesk) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(200):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)
    except OSError:
        return


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (_redirect, "status 302"),
        (_huge, "more than"),
        (_drip, "too long|timed out"),
        (lambda handler: handler.say(b"[]"), "not a JSON object"),  # type: ignore[misc]
        (lambda handler: handler.say(b"[" * 100_000), "not JSON"),  # type: ignore[misc]
        (lambda handler: handler.say(b"\xff"), "not JSON"),  # type: ignore[misc]
        (lambda handler: handler.wfile.write(b"nonsense\r\n\r\n"), "did not return"),  # type: ignore[misc]
    ],
    ids=["redirect", "huge", "drip", "list", "deep", "bytes", "nonsense"],
)
async def test_whoever_answers_in_another_way_has_not_answered(
    server: IssuerServer, answer: Any, told: str
) -> None:
    server.answers["/keys"] = answer
    with pytest.raises(Unavailable, match=told):
        await fetch_json(f"{server.url}/keys", seconds=1.0)
    assert "/elsewhere" not in server.asked


async def test_nobody_who_listens_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        await fetch_json("http://127.0.0.1:9/keys?token=secret")
