"""Which servers there are, as a client of MGP may ask the gateway. (MGP §15.2, §15.3)"""

import json
from collections.abc import Iterator

import pytest

from tests.conformance.conftest import standing
from tests.conformance.realm import OFFER, SPOKEN, offer
from tests.conformance.ways import Entry, Frame, House, Talk, on_pipes

DECLARED: Frame = {
    "extensions": ["audit"],
    "permissions_required": ["memory.read"],
    "trust_level": "trusted",
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    spoken = json.dumps(SPOKEN)
    claims = json.dumps({**SPOKEN, "trust_level": "trusted", "version": "1.0.0"})
    servers: dict[str, Entry] = {
        "plain": on_pipes("talker", TALKER_NAME="plain", TALKER_TOOLS='["extra"]'),
        "mind": on_pipes("talker", TALKER_NAME="mind", TALKER_MGP=spoken) | {"mgp": DECLARED},
        "later": on_pipes("talker", TALKER_NAME="later", TALKER_MGP=claims),
        "absent": {"command": "no-such-program", "mgp": DECLARED},
    }
    with standing(tmp_path_factory.mktemp("index"), servers) as house:
        yield house


async def listed(talk: Talk, **filtered: object) -> dict[str, Frame]:
    """The servers that are listed, by their ids, in the order of the list."""
    params = {"filter": filtered} if filtered else {}
    found = (await talk.client.request("mgp/discovery/list", params)).result
    assert found.keys() == {"servers"}
    return {server["id"]: server for server in found["servers"]}


@pytest.mark.requirement("MGP-15.2-list", "MGP-15.2-list-result", "MGP-2.2-ext-discovery")
async def test_every_server_is_listed_with_what_is_known_of_it(house: House) -> None:
    async with house.among_all("mind").talk(offer("discovery")) as talk:
        found = await listed(talk)
        tools = (await talk.client.request("tools/list", {})).result["tools"]
    assert found.keys() == {"plain", "mind", "later", "absent"}
    names = [tool["name"].removeprefix("mind__") for tool in tools if "mind__" in tool["name"]]
    assert found["mind"] == {
        "id": "mind",
        "status": "connected",
        "mgp_version": SPOKEN["version"],
        "extensions": ["lifecycle", "security", "streaming"],
        "tools": names,
        "trust_level": "sandboxed",
    }
    assert "extra" in found["plain"]["tools"]
    assert found["plain"] == {
        "id": "plain",
        "status": "connected",
        "mgp_version": None,
        "extensions": [],
        "tools": found["plain"]["tools"],
        "trust_level": "standard",
    }


@pytest.mark.requirement("MGP-15.2-list")
@pytest.mark.parametrize(
    ("filtered", "ids"),
    [
        ({"status": "connected"}, "plain mind later"),
        ({"status": "draining"}, ""),
        ({"extensions": ["lifecycle"]}, "mind"),
        ({"extensions": ["lifecycle", "audit"]}, ""),
        ({"permissions": ["network.outbound"]}, "mind"),
        ({"permissions": ["memory.read"]}, "mind absent"),
        ({"permissions": ["memory.read"], "status": "connected"}, "mind"),
        ({"unheard_of": 1}, "plain mind later absent"),
    ],
)
async def test_a_filter_lets_through_whoever_has_all_that_it_names(
    house: House, filtered: Frame, ids: str
) -> None:
    async with house.among_all("mind").talk(OFFER) as talk:
        assert (await listed(talk, **filtered)).keys() == set(ids.split())


@pytest.mark.requirement("MGP-15.2-list")
@pytest.mark.parametrize(
    "filtered", [{"status": "well"}, {"extensions": "audit"}, {"permissions": [7]}, 7]
)
async def test_a_filter_that_cannot_be_read_is_refused(house: House, filtered: object) -> None:
    async with house.among_all("mind").talk(OFFER) as talk:
        answer = await talk.client.request("mgp/discovery/list", {"filter": filtered})
    assert answer.response["error"]["code"] == -32602


@pytest.mark.requirement("MGP-15.3-preconnect")
async def test_what_was_written_of_a_server_is_told_before_it_is_met(house: House) -> None:
    async with house.among_all("mind").talk(OFFER) as talk:
        absent = (await listed(talk))["absent"]
    assert absent["status"] not in ("connected", "draining")
    assert absent["extensions"] == DECLARED["extensions"]
    assert (absent["mgp_version"], absent["tools"]) == (None, [])
    assert absent["trust_level"] == DECLARED["trust_level"]


@pytest.mark.requirement("MGP-2.4-major")
async def test_a_server_of_another_major_version_counts_as_a_plain_one(house: House) -> None:
    async with house.among_all("later").talk(OFFER) as talk:
        later = (await listed(talk))["later"]
        seen = await talk.seen()
    assert (later["mgp_version"], later["extensions"]) == (None, [])
    assert later["trust_level"] == "standard"
    assert not [frame for frame in seen if frame["method"].startswith("mgp/")]
