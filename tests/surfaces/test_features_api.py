"""What operators are told of live servers at /api/features, and what is refused there."""

from typing import Any

import pytest

from comity.kernel.live.hosting import Hosting
from comity.rules.live_policy import LivePolicy
from comity.surfaces.asked import Asked
from comity.surfaces.features_api import FeaturesApi
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.features import Bounds
from comity.wire.grants import Effect, Grant
from comity.wire.parties import LOCAL, Actor
from tests.kernel.live.live_link import DECLARED, LinkRoom


class Written:
    """Remembers what was decided."""

    def __init__(self) -> None:
        self.grants: list[tuple[str, str, str, Effect | None]] = []

    async def put(self, actor: Actor, grant: Grant) -> Grant:
        self.grants.append((grant.subject, grant.verb, grant.target, grant.effect))
        return grant

    async def revoke(self, actor: Actor, subject: str, verb: str, target: str) -> bool:
        self.grants.append((subject, verb, target, None))
        return True


def opened() -> tuple[FeaturesApi, Written]:
    scopes = {"files": Bounds(("/p/**",), ("**/.env",))}
    policy = LivePolicy(enabled=("files",), scopes=scopes)
    hosting, written = Hosting(lambda _: policy), Written()
    for name in ("one", "two"):
        hosting.welcome(LinkRoom(name, modern=name == "two"), DECLARED)
    return FeaturesApi(hosting, written), written


async def ask(api: FeaturesApi, method: str = "GET", *place: str, **body: Any) -> Any:
    query = {"server": body.pop("only")} if "only" in body else {}
    return await api.rooms["features"](Asked(method, place, query, body, LOCAL))


async def test_each_live_server_is_shown_with_each_of_its_sets() -> None:
    api, _ = opened()
    found = (await ask(api))["servers"]
    assert [(each["server"], each["era"]) for each in found] == [
        ("one", "handshake"),
        ("two", "modern"),
    ]
    (files, push, _) = found[0]["features"]
    assert (files["feature"], files["enabled"], files["scoped"]) == ("files", True, True)
    assert (files["whitelist"], files["blacklist"]) == (["/p/**"], ["**/.env"])
    assert (push["enabled"], push["by"], "whitelist" in push) == (False, "default", False)
    assert [each["server"] for each in (await ask(api, only="two"))["servers"]] == ["two"]


async def test_a_decision_is_a_grant_to_the_server() -> None:
    api, written = opened()
    for deed in ("enable", "disable", "forget"):
        shown = await ask(api, "POST", deed, server="one", feature="memory.*")
        assert [each["server"] for each in shown["servers"]] == ["one"]
    assert [each[3] for each in written.grants] == [Effect.ALLOW, Effect.DENY, None]
    assert {each[:3] for each in written.grants} == {("server:one", "feature/enable", "memory.*")}
    # It may be decided before the server is there.
    assert await ask(api, "POST", "enable", server="later", feature="x") == {"servers": []}


@pytest.mark.parametrize(
    ("method", "place", "body", "fault"),
    [
        ("GET", ("nowhere",), {}, NOTHING_HERE),
        ("POST", ("enable",), {"server": "one"}, INVALID_PARAMS),
        ("POST", ("enable",), {"server": "", "feature": "x"}, INVALID_PARAMS),
        ("POST", ("enable",), {"server": "one", "feature": "x" * 200}, INVALID_PARAMS),
        ("DELETE", (), {}, NOTHING_HERE),
    ],
)
async def test_what_makes_no_sense_is_refused(
    method: str, place: tuple[str, ...], body: dict[str, Any], fault: object
) -> None:
    api, written = opened()
    with pytest.raises(MalformedMessage) as refused:
        await ask(api, method, *place, **body)
    assert refused.value.fault is fault
    assert written.grants == []
