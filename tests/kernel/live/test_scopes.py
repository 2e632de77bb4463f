"""What calls of tools reach: what is judged before they leave, and what goes along with them."""

import json
from typing import Any

import pytest

from comity.kernel.catalog import Offer
from comity.kernel.held import Holding
from comity.kernel.live.hosting import Hosting
from comity.kernel.live.scopes import Beyond, OnlyDenials, Scopes, arguments_of, digest_of
from comity.rules.live_policy import LivePolicy
from comity.rules.refusals import Refusal
from comity.wire import jsonrpc
from comity.wire.errors import ACCESS_DENIED, INVALID_TOOL_ARGS, TOOL_DISABLED
from comity.wire.features import Bounds, Declared, FeatureSet, Scope, Use
from tests.kernel.live.live_link import LinkRoom, calling, params_of

TOOLS = frozenset({Use.TOOLS})
SETS = {
    "files": FeatureSet("files", "Files", TOOLS, is_scoped=True),
    "notes": FeatureSet("notes", "Notes", TOOLS),
    "off": FeatureSet("off", "Off", TOOLS),
}
BOUNDS = Bounds(("/project/**",), ("**/.env",))
POLICY = LivePolicy(
    enabled=("files", "notes"),
    scopes={"files": BOUNDS},
    scope_of={"edit": "/path", "jot": "/path", "gone": "/path"},
)


class House:
    """A host of one server, and what is decided of it."""

    def __init__(self, policy: LivePolicy = POLICY, *, is_live: bool = True) -> None:
        self.hosting = Hosting(lambda _: policy)
        self.link = LinkRoom()
        if is_live:
            self.hosting.welcome(self.link, Declared("0.4", sets=SETS))
        # No call is held in these tests.
        self.scopes = Scopes(self.hosting, lambda _: policy, Holding.__new__(Holding))

    def judge(self, tool: str, of: str = "files", **given: Any) -> object:
        definition = json.dumps({"name": tool, "_meta": {"featureSet": of}}).encode()
        offer = Offer(f"srv__{tool}", "srv", tool, definition)
        return self.scopes.judge(calling(tool)[0], offer, given)

    async def brought(self, tool: str, **params: Any) -> Any:
        by = self.hosting.get("srv")
        assert by is not None
        call, frame = calling(tool, **params)
        if not self.scopes.carries(by, call, frame):
            return None
        return params_of(await self.scopes.bring(by, call, frame))


def fault_of(found: object) -> object:
    assert isinstance(found, Refusal)
    return found.fault


async def test_a_call_within_its_bounds_goes_and_one_that_is_denied_does_not() -> None:
    house = House()
    assert house.judge("edit", path="/project/x") is None
    assert fault_of(house.judge("edit", path="/project/.env")) is ACCESS_DENIED
    assert fault_of(house.judge("edit", other=1)) is INVALID_TOOL_ARGS


async def test_what_is_beyond_is_a_persons_to_say() -> None:
    found = House().judge("edit", path="/etc/x")
    assert found == Beyond("files", Scope("/etc/x", {"path": "/etc/x"}))


async def test_a_scoped_tool_of_which_nobody_said_more_is_asked_for_each_call() -> None:
    found = House().judge("other", anything=1)
    assert found == Beyond("files", Scope("other", {"anything": 1}))
    assert House().judge("other", of="notes", anything=1) is None


async def test_no_tool_escapes_by_saying_that_it_is_of_a_set_without_bounds() -> None:
    house = House()
    assert isinstance(house.judge("jot", of="notes", path="/project/x"), Beyond)
    assert fault_of(house.judge("jot", of="notes", path="/x/.env")) is ACCESS_DENIED


async def test_where_there_are_no_bounds_at_all_a_scope_is_only_told() -> None:
    policy = LivePolicy(enabled=("notes",), scope_of={"jot": "/path"})
    assert House(policy).judge("jot", of="notes", path="/.env") is None


async def test_a_tool_of_a_set_that_is_not_enabled_is_nobodys() -> None:
    found = House().judge("edit", of="off", path="/project/x")
    assert fault_of(found) is TOOL_DISABLED
    assert isinstance(found, Refusal)
    assert "comity features enable srv off" in found.because


async def test_bounds_of_all_tools_count_for_those_of_no_set() -> None:
    policy = LivePolicy(scopes={"*": BOUNDS}, scope_of={"edit": "/path"})
    house = House(policy, is_live=False)
    assert house.judge("edit", path="/project/x") is None
    assert fault_of(house.judge("edit", path="/.env")) is ACCESS_DENIED
    assert isinstance(house.judge("edit", path="/etc/x"), Beyond)


async def test_of_a_server_elsewhere_the_set_that_a_tool_names_counts() -> None:
    house = House(is_live=False)
    assert house.judge("edit", of="files", path="/project/x") is None
    assert isinstance(house.judge("edit", of="files", path="/etc/x"), Beyond)
    assert fault_of(house.judge("edit", of="files", path="/.env")) is ACCESS_DENIED


async def test_what_people_were_asked_at_another_node_is_only_denied_here() -> None:
    house = House()
    denials = OnlyDenials(house.scopes)
    offer = Offer("srv__edit", "srv", "edit", b'{"_meta": {"featureSet": "files"}}')
    call, frame = calling("edit")
    assert denials.judge(call, offer, {"path": "/etc/x"}) is None
    assert fault_of(denials.judge(call, offer, {"path": "/.env"})) is ACCESS_DENIED
    assert fault_of(denials.hold(call, offer, None, None, frame)) is not None  # type: ignore[arg-type]


async def test_a_plain_server_of_which_nothing_is_said_is_left_alone() -> None:
    assert House(LivePolicy(), is_live=False).judge("edit", path="/.env") is None


async def test_a_call_bears_the_scope_of_its_arguments_and_no_other() -> None:
    house = House()
    told = await house.brought("edit", arguments={"path": "/project//x"}, scope={"label": "/etc"})
    assert told["scope"] == {"label": "/project/x", "payload": {"path": "/project//x"}}
    assert "scope" not in await house.brought("plain", arguments={}, scope={"label": "/etc"})
    assert "scope" not in await house.brought("edit")
    assert "scope" not in await house.brought("edit", arguments={"path": 7})


async def test_a_call_to_a_server_without_scopes_goes_as_it_is() -> None:
    house = House(LivePolicy(enabled=("*",)))
    assert await house.brought("edit", arguments={"path": "/x"}) is None
    told = await house.brought("edit", arguments={}, scope={"label": "/x"})
    assert told == {"name": "edit", "arguments": {}}
    by = house.hosting.get("srv")
    assert by is not None
    call, frame = calling()
    assert await house.scopes.take(by, call, frame) is frame
    bare = jsonrpc.request("c-1", "tools/call")
    assert not house.scopes.carries(by, call, bare)


@pytest.mark.parametrize(
    "other",
    [
        ("agent:b", "srv", Beyond("files", Scope("/x"))),
        ("agent:a", "two", Beyond("files", Scope("/x"))),
        ("agent:a", "srv", Beyond("notes", Scope("/x"))),
        ("agent:a", "srv", Beyond("files", Scope("/y"))),
        ("agent:a", "srv", Beyond("files", Scope("/x", {"path": "/x"}))),
    ],
)
def test_an_allowance_is_bound_to_all_that_it_is_about(other: tuple[str, str, Beyond]) -> None:
    mine = digest_of("agent:a", "srv", Beyond("files", Scope("/x")), b"key")
    assert digest_of(*other, b"key") != mine
    assert digest_of("agent:a", "srv", Beyond("files", Scope("/x")), b"key") == mine


def test_the_arguments_of_a_call_are_what_it_says_or_nothing() -> None:
    assert arguments_of(calling(arguments={"a": 1})[1]) == {"a": 1}
    assert arguments_of(calling()[1]) == {}
