"""How far a live server may reach, and what people allow beyond. (MCPL §7, D-62, D-63)"""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from comity.approvals.model import ApprovalDecision, ApprovalKind, ApprovalRequest
from comity.approvals.pending_calls import PendingCalls
from comity.approvals.service import ApprovalService
from comity.approvals.settings import ApprovalSettings
from comity.errors import (
    ACCESS_DENIED,
    FEATURE_NOT_ENABLED,
    FEATURE_UNKNOWN,
    INVALID_TOOL_ARGS,
    TOOL_DISABLED,
    MalformedMessage,
    Unavailable,
)
from comity.live.features import LivePolicy
from comity.live.host import LiveHost, LiveMessage, LiveServer
from comity.live.scopes.rules import (
    MAX_LABEL_LENGTH,
    MAX_STRINGS,
    check_claim,
    check_label,
    is_allowed,
    list_readings,
    normalize_label,
    scope_of,
    strictest_verdict,
    strings_at,
    strings_in,
)
from comity.live.scopes.service import (
    SCOPE_ENRICHMENT_KEY,
    OutOfScope,
    ScopeDenyList,
    ScopeElevation,
    ScopeService,
    digest_of,
)
from comity.mcp import jsonrpc
from comity.mcp.entries import CatalogEntry
from comity.mcp.mcpl import FeatureSet, FeatureUse, McplDeclaration, ScopeBounds, ScopeClaim
from comity.mcp.refusals import Refusal
from comity.storage.changes import RecordKind
from comity.validation.paths import PathVerdict
from tests.live.live_link import DECLARED, LinkRoom, breath, calling, params_of
from tests.support.asking import ANA, Grants
from tests.support.cases import loop_over
from tests.support.inline_store import inline_records

BOUNDS = ScopeBounds(("/project/**", "/tmp/*", "#general", "#dev-*"), ("**/.env", "**/secrets/**"))
PARTS = st.sampled_from(
    ["project", "etc", "..", ".", "", "a", ".env", "secrets", "%2e%2e", "..\\..", "%252e%252e"]
)


@loop_over(
    ("label", "ruling"),
    [
        ("/project/src/main.ts", PathVerdict.ALLOWED),
        ("/project//src/./main.ts", PathVerdict.ALLOWED),
        ("/project/a/../b", PathVerdict.ALLOWED),
        ("#general", PathVerdict.ALLOWED),
        ("#dev-ops", PathVerdict.ALLOWED),
        ("/project/.env", PathVerdict.DENIED),
        ("/project/.ENV", PathVerdict.DENIED),
        ("/project/x/../.env", PathVerdict.DENIED),
        ("/project/secrets", PathVerdict.DENIED),
        ("/project/%2eenv", PathVerdict.DENIED),
        ("/project/.\N{FULLWIDTH LATIN SMALL LETTER E}nv", PathVerdict.DENIED),
        ("/project/.e\N{ZERO WIDTH SPACE}nv", PathVerdict.DENIED),
        ("\\project\\.env", PathVerdict.DENIED),
        ("../../project/.env", PathVerdict.DENIED),
        ("/" + "x" * MAX_LABEL_LENGTH, PathVerdict.DENIED),
        ("/etc/hosts", PathVerdict.OUTSIDE),
        ("/project/../etc/hosts", PathVerdict.OUTSIDE),
        ("/project/..\\..\\etc/hosts", PathVerdict.OUTSIDE),
        ("/project/%2e%2e/etc/hosts", PathVerdict.OUTSIDE),
        ("/project/%252e%252e/etc/hosts", PathVerdict.OUTSIDE),
        ("/etc/x\\..\\..\\..\\project/y", PathVerdict.OUTSIDE),
        ("/tmp/a/b", PathVerdict.OUTSIDE),
        ("project/a", PathVerdict.OUTSIDE),
        ("#admin-x", PathVerdict.OUTSIDE),
        ("", PathVerdict.OUTSIDE),
    ],
)
def test_a_label_is_ruled_by_every_way_of_reading_it(label: str, ruling: PathVerdict) -> None:
    assert check_label(label, BOUNDS) is ruling


def test_without_bounds_everything_is_to_be_asked_but_what_others_deny() -> None:
    assert check_label("/project/x", None) is PathVerdict.OUTSIDE
    assert check_label("/project/x", None, ["/project/**"]) is PathVerdict.DENIED


def test_a_way_up_and_out_is_within_nothing_and_denied_wherever_it_may_lead() -> None:
    assert not is_allowed("../x", ["**"])
    assert not is_allowed("..", ["**"])
    assert check_label("../../etc/passwd", ScopeBounds(("**",), ("/etc/**",))) is PathVerdict.DENIED


@given(st.lists(PARTS, max_size=8))
@example(["project", "..", "etc"])
def test_no_way_up_escapes_from_what_is_allowed(parts: list[str]) -> None:
    """A reader that takes each way up ends where the pattern let it, whatever it unescapes."""
    label = "/" + "/".join(parts)
    if is_allowed(label, ["/project/**"]):
        for each in list_readings(label):
            assert each == "/project" or each.startswith("/project/")


@given(st.lists(PARTS, max_size=8), st.booleans())
def test_what_is_normal_stays_so_and_has_no_way_up_amid_it(parts: list[str], rooted: bool) -> None:
    found = normalize_label(("/" if rooted else "") + "/".join(parts))
    assert normalize_label(found) == found
    ways_up = [place for place, part in enumerate(found.split("/")) if part == ".."]
    assert ways_up == list(range(len(ways_up)))
    assert not (rooted and "/" in found and ways_up and found.startswith("/"))


@loop_over(
    ("label", "payload", "ruling"),
    [
        ("/project/a", {"path": "/project/a"}, PathVerdict.ALLOWED),
        ("/project/a", {"path": "/project//b/../a", "mode": "append"}, PathVerdict.ALLOWED),
        ("#general", {"channel": "#general"}, PathVerdict.ALLOWED),
        # What D-62 is about: the label says one thing, and the server does another.
        ("/project/a", {}, PathVerdict.OUTSIDE),
        ("/project/a", {"path": "/etc/hosts"}, PathVerdict.OUTSIDE),
        ("/project/a", {"path": "/etc/hosts", "note": "/project/a"}, PathVerdict.OUTSIDE),
        ("/project/a", {"path": ["/project/a", "~/x"]}, PathVerdict.OUTSIDE),
        ("/project/a", {"path": "/project/.env"}, PathVerdict.DENIED),
        ("/project/a", {"/project/.env": 1, "path": "/project/a"}, PathVerdict.DENIED),
        ("/project/.env", {"path": "/project/.env"}, PathVerdict.DENIED),
        ("/etc/hosts", {"path": "/etc/hosts"}, PathVerdict.OUTSIDE),
        ("/project/a", {"x": ["y"] * (MAX_STRINGS + 2)}, PathVerdict.DENIED),
        ("/project/a", {"x": "z" * (MAX_LABEL_LENGTH + 1)}, PathVerdict.DENIED),
    ],
)
def test_a_servers_own_words_allow_only_what_the_payload_names_too(
    label: str, payload: dict[str, object], ruling: PathVerdict
) -> None:
    assert check_claim(ScopeClaim(label, payload), BOUNDS) is ruling


def test_texts_that_lie_too_deep_are_not_looked_for() -> None:
    deep: object = "x"
    for _ in range(20):
        deep = [deep]
    assert strings_in(deep) is None
    assert strings_in({"a": ["b", 1, None, {"c": True}]}) is not None


@loop_over(
    ("pointer", "found"),
    [
        ("/path", ("/x",)),
        ("/in/1/at", ("/y",)),
        ("/several", ("/a", "/b")),
        ("/a~1b", ("slash",)),
        ("/a~0b", ("tilde",)),
        ("/number", ()),
        ("/in/7/at", ()),
        ("/in/one", ()),
        ("/nothing/there", ()),
        ("/mixed", ()),
    ],
)
def test_a_pointer_leads_to_the_scope_in_the_arguments(
    pointer: str, found: tuple[str, ...]
) -> None:
    arguments = {
        "path": "/x",
        "in": [{}, {"at": "/y"}],
        "several": ["/a", "/b"],
        "a/b": "slash",
        "a~b": "tilde",
        "number": 1,
        "mixed": ["/a", 1],
    }
    assert strings_at(arguments, pointer) == found


def test_the_scope_of_a_call_is_what_its_arguments_say() -> None:
    assert scope_of({"path": "/a/../b"}, "/path") == ScopeClaim("/b", {"path": "/a/../b"})
    assert scope_of({"to": ["/a", "/b"]}, "/to") == ScopeClaim("/a, /b", {"to": ["/a", "/b"]})
    assert scope_of({}, "/path") is None


def test_of_several_places_the_strictest_counts() -> None:
    assert (
        strictest_verdict([PathVerdict.ALLOWED, PathVerdict.OUTSIDE, PathVerdict.DENIED])
        is PathVerdict.DENIED
    )
    assert strictest_verdict([PathVerdict.ALLOWED, PathVerdict.OUTSIDE]) is PathVerdict.OUTSIDE
    assert strictest_verdict([]) is PathVerdict.ALLOWED


TOOLS = frozenset({FeatureUse.TOOLS})
SETS = {
    "files": FeatureSet("files", "Files", TOOLS, is_scoped=True),
    "notes": FeatureSet("notes", "Notes", TOOLS),
    "off": FeatureSet("off", "Off", TOOLS),
}
CALL_BOUNDS = ScopeBounds(("/project/**",), ("**/.env",))
POLICY = LivePolicy(
    enabled=("files", "notes"),
    scopes={"files": CALL_BOUNDS},
    scope_of={"edit": "/path", "jot": "/path", "gone": "/path"},
)


class House:
    """A host of one server, and what is decided of it."""

    def __init__(self, policy: LivePolicy = POLICY, *, is_live: bool = True) -> None:
        self.hosting = LiveHost(lambda _: policy)
        self.link = LinkRoom()
        if is_live:
            self.hosting.register(self.link, McplDeclaration("0.4", sets=SETS))
        # No call is held in these tests.
        self.scopes = ScopeService(
            self.hosting, lambda _: policy, PendingCalls.__new__(PendingCalls)
        )

    def judge(self, tool: str, of: str = "files", **given: Any) -> object:
        definition = json.dumps({"name": tool, "_meta": {"featureSet": of}}).encode()
        offer = CatalogEntry(f"srv__{tool}", "srv", tool, definition)
        return self.scopes.check_scope(calling(tool)[0], offer, given)

    async def brought(self, tool: str, **params: Any) -> Any:
        by = self.hosting.get("srv")
        assert by is not None
        call, frame = calling(tool, **params)
        if not self.scopes.has_data_for(by, call, frame):
            return None
        return params_of(await self.scopes.add_data(by, call, frame))


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
    assert found == OutOfScope("files", ScopeClaim("/etc/x", {"path": "/etc/x"}))


async def test_a_scoped_tool_of_which_nobody_said_more_is_asked_for_each_call() -> None:
    found = House().judge("other", anything=1)
    assert found == OutOfScope("files", ScopeClaim("other", {"anything": 1}))
    assert House().judge("other", of="notes", anything=1) is None


async def test_no_tool_escapes_by_saying_that_it_is_of_a_set_without_bounds() -> None:
    house = House()
    assert isinstance(house.judge("jot", of="notes", path="/project/x"), OutOfScope)
    assert fault_of(house.judge("jot", of="notes", path="/x/.env")) is ACCESS_DENIED


async def test_where_there_are_no_bounds_at_all_a_scope_is_only_told() -> None:
    policy = LivePolicy(enabled=("notes",), scope_of={"jot": "/path"})
    assert House(policy).judge("jot", of="notes", path="/.env") is None


async def test_a_tool_of_a_set_that_is_not_enabled_is_nobodys() -> None:
    found = House().judge("edit", of="off", path="/project/x")
    assert fault_of(found) is TOOL_DISABLED
    assert isinstance(found, Refusal)
    assert "comity servers features enable srv off" in found.reason


async def test_bounds_of_all_tools_count_for_those_of_no_set() -> None:
    policy = LivePolicy(scopes={"*": CALL_BOUNDS}, scope_of={"edit": "/path"})
    house = House(policy, is_live=False)
    assert house.judge("edit", path="/project/x") is None
    assert fault_of(house.judge("edit", path="/.env")) is ACCESS_DENIED
    assert isinstance(house.judge("edit", path="/etc/x"), OutOfScope)


async def test_of_a_server_elsewhere_the_set_that_a_tool_names_counts() -> None:
    house = House(is_live=False)
    assert house.judge("edit", of="files", path="/project/x") is None
    assert isinstance(house.judge("edit", of="files", path="/etc/x"), OutOfScope)
    assert fault_of(house.judge("edit", of="files", path="/.env")) is ACCESS_DENIED


async def test_what_people_were_asked_at_another_node_is_only_denied_here() -> None:
    house = House()
    denials = ScopeDenyList(house.scopes)
    offer = CatalogEntry("srv__edit", "srv", "edit", b'{"_meta": {"featureSet": "files"}}')
    call, frame = calling("edit")
    assert denials.check_scope(call, offer, {"path": "/etc/x"}) is None
    assert fault_of(denials.check_scope(call, offer, {"path": "/.env"})) is ACCESS_DENIED
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
    assert await house.scopes.take_data(by, call, frame) is frame
    bare = jsonrpc.make_request("c-1", "tools/call")
    assert not house.scopes.has_data_for(by, call, bare)


@pytest.mark.parametrize(
    "other",
    [
        ("agent:b", "srv", OutOfScope("files", ScopeClaim("/x"))),
        ("agent:a", "two", OutOfScope("files", ScopeClaim("/x"))),
        ("agent:a", "srv", OutOfScope("notes", ScopeClaim("/x"))),
        ("agent:a", "srv", OutOfScope("files", ScopeClaim("/y"))),
        ("agent:a", "srv", OutOfScope("files", ScopeClaim("/x", {"path": "/x"}))),
    ],
)
def test_an_allowance_is_bound_to_all_that_it_is_about(other: tuple[str, str, OutOfScope]) -> None:
    mine = digest_of("agent:a", "srv", OutOfScope("files", ScopeClaim("/x")), b"key")
    assert digest_of(*other, b"key") != mine
    assert digest_of("agent:a", "srv", OutOfScope("files", ScopeClaim("/x")), b"key") == mine


OPTIONS = ApprovalSettings(
    request_ttl=timedelta(minutes=5),
    approval_ttl=timedelta(minutes=10),
    denial_cooldown=timedelta(minutes=1),
    max_open_per_principal=3,
)


class Elevations:
    """An inbox with a clock that a test turns, and a server that asks."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        asks = inline_records(self._told).approval_requests
        self.approvals = ApprovalService(asks, Grants(), None, OPTIONS, self.clock)
        self.elevating = ScopeElevation(self.approvals, None, lambda said: said, b"key")
        policy = LivePolicy(scopes={"files": CALL_BOUNDS})
        self.host = LiveServer("srv", LinkRoom(), DECLARED, policy, frozenset({"files"}))

    def _told(self, what: RecordKind, ids: object) -> None:
        """Nobody else looks at these records."""

    def clock(self) -> datetime:
        return self.now

    async def elevate(self, label: str, feature: str = "files", **payload: Any) -> Any:
        scope = {"label": label, "payload": payload}
        params = jsonrpc.to_raw({"featureSet": feature, "scope": scope})
        return await self.elevating.answer(LiveMessage(self.host, "scope/elevate", params))

    async def asks(self) -> list[ApprovalRequest]:
        await breath()
        return [each for each in await self.approvals.store.page((), "", 100) if each.is_open]

    async def answered(self, verdict: ApprovalDecision, *args: Any, **payload: Any) -> Any:
        """What an elevation comes to, of which a person says so."""
        asked = asyncio.ensure_future(self.elevate(*args, **payload))
        (ask,) = await self.asks()
        assert ask.kind is ApprovalKind.SCOPE
        await self.approvals.answer(ANA, ask.id, verdict, "because")
        return await asyncio.wait_for(asked, 30)


async def test_what_is_clear_is_said_at_once_and_asks_nobody() -> None:
    house = Elevations()
    allowed = await house.elevate("/project/x", path="/project/x")
    assert allowed["approved"] is True
    assert allowed["payload"] == {
        "path": "/project/x",
        SCOPE_ENRICHMENT_KEY: {"label": "/project/x"},
    }
    denied = await house.elevate("/project/.env", path="/project/.env")
    assert denied["approved"] is False
    assert "payload" not in denied
    assert await house.asks() == []


async def test_what_a_person_allows_is_not_asked_again_until_it_ends() -> None:
    house = Elevations()
    found = await house.answered(ApprovalDecision.ACCEPT, "/etc/x", path="/etc/x")
    assert found["approved"] is True
    assert found["payload"][SCOPE_ENRICHMENT_KEY]["until"].startswith("2026-01-01T00:10")
    assert (await house.elevate("/etc/x", path="/etc/x"))["approved"] is True
    house.now += timedelta(minutes=11)
    found = await house.answered(ApprovalDecision.DECLINE, "/etc/x", path="/etc/x")
    assert found == {"approved": False, "reason": "because"}


@pytest.mark.parametrize(
    "other", [("/etc/y", {"path": "/etc/x"}), ("/etc/x", {"path": "/etc/x", "mode": "w"})], ids=str
)
async def test_it_is_bound_to_the_label_and_the_payload(other: tuple[str, dict[str, Any]]) -> None:
    house = Elevations()
    await house.answered(ApprovalDecision.ACCEPT, "/etc/x", path="/etc/x")
    label, payload = other
    assert (await house.answered(ApprovalDecision.DECLINE, label, **payload))["approved"] is False


async def test_it_is_bound_to_the_server_and_the_feature_set() -> None:
    house = Elevations()
    await house.answered(ApprovalDecision.ACCEPT, "/etc/x", path="/etc/x")
    house.host = replace(house.host, server="other")
    assert (await house.answered(ApprovalDecision.DECLINE, "/etc/x", path="/etc/x"))[
        "approved"
    ] is False
    house.host = replace(house.host, server="srv", enabled=frozenset({"memory.read"}))
    found = await house.answered(ApprovalDecision.DECLINE, "/etc/x", "memory.read", path="/etc/x")
    assert found["approved"] is False


async def test_what_was_declined_is_not_asked_again_at_once() -> None:
    house = Elevations()
    await house.answered(ApprovalDecision.DECLINE, "/etc/x", path="/etc/x")
    again = await house.elevate("/etc/x", path="/etc/x")
    assert again == {"approved": False, "reason": "because"}
    house.now += timedelta(minutes=2)
    assert (await house.answered(ApprovalDecision.ACCEPT, "/etc/x", path="/etc/x"))[
        "approved"
    ] is True


async def test_two_who_ask_the_same_share_one_question() -> None:
    house = Elevations()
    one = asyncio.ensure_future(house.elevate("/etc/x", path="/etc/x"))
    found = await house.answered(ApprovalDecision.ACCEPT, "/etc/x", path="/etc/x")
    assert (await asyncio.wait_for(one, 30)) == found


async def test_what_nobody_answers_in_time_is_not_allowed() -> None:
    house = Elevations()
    asked = asyncio.ensure_future(house.elevate("/etc/x", path="/etc/x"))
    (ask,) = await house.asks()
    house.now += timedelta(minutes=6)
    house.approvals.wake_waiters(ask.id)
    found = await asyncio.wait_for(asked, 30)
    assert found["approved"] is False
    assert "expired" in found["reason"]


async def test_one_server_asks_no_more_at_once_than_it_may() -> None:
    house = Elevations()
    waiting = [
        asyncio.ensure_future(house.elevate(f"/etc/{number}", path=f"/etc/{number}"))
        for number in range(3)
    ]
    await breath()
    with pytest.raises(Unavailable):
        await house.elevate("/etc/more", path="/etc/more")
    for each in waiting:
        each.cancel()


@pytest.mark.parametrize(
    ("feature", "fault"), [("nowhere", FEATURE_UNKNOWN), ("memory.read", FEATURE_NOT_ENABLED)]
)
async def test_a_set_that_is_not_there_or_not_enabled_elevates_nothing(
    feature: str, fault: object
) -> None:
    with pytest.raises(MalformedMessage) as refused:
        await Elevations().elevate("/project/x", feature, path="/project/x")
    assert refused.value.fault is fault
