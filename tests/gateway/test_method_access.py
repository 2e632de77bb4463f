"""Every method at every endpoint, in both versions and under each kind of grant."""

import asyncio
import functools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from comity.gateway.all_servers import AllServersEndpoint
from comity.gateway.method_access import FAMILIES, REQUESTS
from comity.gateway.pipeline import CallGate
from comity.gateway.view_endpoint import ViewEndpoint
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.jsonrpc import UNSET
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.snapshot import AllowAll, GrantSnapshot, PolicyEngine
from comity.sessions.methods import MethodRequest, MethodTable, method
from comity.sessions.sessions import Session
from comity.views.model import View
from comity.views.service import ViewService
from tests.support.carriers import Params, Script
from tests.support.desks import MODERN, Front, all_servers, one_server

ANA: Final = Actor("person:ana")
ENDPOINTS: Final = ("gateway", "view", "server")
TABLE: Final = """
tools/call                  both   tool   tool   tool
prompts/get                 both   prompt prompt prompt
resources/read              both   read   read   read
resources/subscribe         legacy read   read   read
resources/unsubscribe       legacy read   read   read
completion/complete         both   read   read   read
tools/list                  both   all    all    all
prompts/list                both   all    all    all
resources/list              both   all    all    all
resources/templates/list    both   all    all    all
initialize                  legacy all    all    all
ping                        legacy all    all    all
logging/setLevel            legacy all    all    all
server/discover             modern all    all    all
subscriptions/listen        modern all    all    all
tasks/get                   both   task   task   task
tasks/cancel                both   task   task   task
tasks/result                legacy task   task   task
tasks/update                modern task   task   task
tasks/list                  both   -      -      -
tasks/other                 both   -      -      -
sampling/createMessage      both   -      -      -
elicitation/create          both   -      -      -
roots/list                  both   -      -      -
notifications/cancelled     both   -      -      -
mgp/permission/request      both   -      -      -
mgp/access/query            both   own    -      verb
mgp/access/grant            both   own    -      verb
mgp/access/revoke           both   own    -      verb
mgp/discovery/list          both   own    -      verb
mgp/discovery/register      both   own    -      verb
mgp/discovery/deregister    both   own    -      verb
mgp/health/ping             both   own    -      verb
mgp/health/status           both   own    -      verb
mgp/lifecycle/shutdown      both   own    -      verb
mgp/callback/respond        both   own    own    verb
mgp/events/subscribe        both   own    -      verb
mgp/events/unsubscribe      both   own    -      verb
mgp/stream/cancel           both   own    own    -
mgp/tools/discover          both   own    -      verb
mgp/tools/request           both   own    -      verb
mgp/tools/session           both   own    -      verb
mgp/tools/session/evict     both   own    -      verb
mgp/other                   both   -      -      verb
events/list                 both   own    -      verb
events/subscribe            both   own    -      verb
events/unsubscribe          both   own    -      verb
events/poll                 both   own    -      verb
channels/publish            both   -      -      -
context/beforeInference     both   -      -      -
featureSets/update          both   -      -      -
inference/chunk             both   -      -      -
mcpl/listen                 both   -      -      -
model/info                  both   -      -      -
push/event                  both   -      -      -
scope/elevate               both   -      -      -
state/rollback              both   -      -      -
vendor/unknown              both   -      -      verb
"""
"""Each method, its versions, and what it needs at the gateway, in a view and at one server.

`own` is answered by the gateway, `-` is refused to everybody, and `verb` needs a grant on the
method. At one server of the kernel nothing streams, so `mgp/stream/cancel` finds nothing there.
"""

GRANTS: Final[dict[str, tuple[str, str] | None]] = {
    "none": None,
    "tool": (protocol.CALL_TOOL, "srv/read"),
    "other tool": (protocol.CALL_TOOL, "srv/write"),
    "prompt": (protocol.GET_PROMPT, "srv/hello"),
    "read": (protocol.READ_RESOURCE, "srv/x:1"),
    "verb": ("", "srv"),
    "everything": ("*", "*"),
    "open": None,
}
OPENS: Final = {
    "tool": {"tool", "everything", "open"},
    "task": {"tool", "everything", "open"},
    "prompt": {"prompt", "everything", "open"},
    "read": {"read", "everything", "open"},
    "verb": {"verb", "everything", "open"},
    "all": set(GRANTS),
    "own": set(GRANTS),
    "-": set[str](),
}


class OwnMethods:
    """Answers every method that the gateway would answer, apart from those of servers' states."""

    async def answer(self, request: MethodRequest) -> Params:
        return {"by": "gateway"}


for _name in REQUESTS:
    if _name.startswith(("mgp/", "events/")) and not _name.startswith(
        ("mgp/discovery/list", "mgp/health/", "mgp/lifecycle/")
    ):
        method(_name)(OwnMethods.answer)


def rows() -> list[tuple[str, str, tuple[str, ...]]]:
    split = [line.split() for line in TABLE.strip().splitlines()]
    return [(name, versions, tuple(needs)) for name, versions, *needs in split]


def policy_for(profile: str) -> PolicyEngine:
    if profile == "open":
        return AllowAll()
    granted = GRANTS[profile]
    grants = [] if granted is None else [Grant(ANA.party, *granted, Effect.ALLOW)]
    if profile == "verb":
        verbs = [name for name, _, needs in rows() if needs[-1] in ("verb", "-")]
        grants = [Grant(ANA.party, verb, "srv", Effect.ALLOW) for verb in verbs]
        grants += [Grant(ANA.party, name, "srv", Effect.ALLOW) for name in eras.METHODS]
    return GrantSnapshot(GrantSet.from_grants(grants))


def scripted(modern: bool) -> Script:
    offered: Params = {"tools": {}, "prompts": {}, "resources": {}, "completions": {}}
    script = Script(handshake=not modern, modern=modern)
    script.replies = {name: {"ok": 1} for name, _, _ in rows()}
    server: Params = {"protocolVersion": protocol.LATEST_HANDSHAKE, "capabilities": offered}
    script.replies |= {
        protocol.INITIALIZE: {**server, "serverInfo": {"name": "s", "version": "1"}},
        protocol.DISCOVER: {
            "supportedVersions": [protocol.LATEST_MODERN],
            "capabilities": offered,
        },
        protocol.LIST_TOOLS: {"tools": [{"name": "read", "inputSchema": {"type": "object"}}]},
        protocol.LIST_PROMPTS: {"prompts": [{"name": "hello"}]},
        protocol.LIST_RESOURCES: {"resources": [{"name": "one", "uri": "x:1"}]},
        protocol.LIST_TEMPLATES: {"resourceTemplates": []},
    }
    return script


CAPABILITIES: Final = {"mgp": {"version": "0.3.0", "extensions": ["lifecycle", "discovery"]}}


def params_for(name: str, place: str) -> Params:
    meta = {**MODERN, protocol.CLIENT_CAPABILITIES: CAPABILITIES}
    params: Params = {"_meta": meta, "uri": "x:1", "level": "debug", "notifications": {}}
    params["ref"] = {"type": "ref/resource", "uri": "x:1"}
    # A second `initialize` agrees on the same terms as the first.
    params |= {"capabilities": CAPABILITIES, "protocolVersion": protocol.LATEST_HANDSHAKE}
    params["name"] = "hello" if name == protocol.GET_PROMPT else "read"
    if place == "view":
        params["name"] = f"srv__{params['name']}" if name == protocol.GET_PROMPT else "read"
    params["taskId"] = eras.UNKEYED_TASK_IDS.public(ANA.party, "srv", "read", "t-1")
    return params


async def outcome(
    front: Front, session: Session | None, script: Script, name: str, place: str
) -> str:
    """Return whether a request was refused, reached a server, or was answered by the gateway."""
    before = sum(len(each.asked(name)) for each in script.carriers)
    params = params_for(name, place)
    if session is None:
        asked = front.handle_modern_request(name, params, actor=ANA)
    else:
        del params["_meta"]
        asked = front.ask(session, name, params, ANA)
    async with asyncio.timeout(10):
        call = await asked.asking
        if name == protocol.LISTEN and not asked.outbox.is_final:
            call.withdraw(None)
            return "passed"
        await asked.outbox.wait_until_final()
    answer = jsonrpc.decode_frame(asked.outbox.take()[-1])
    reached = sum(len(each.asked(name)) for each in script.carriers) > before
    if reached:
        return "reached"
    # A refused call of a tool is a result for a legacy client.
    is_refused = answer.result is UNSET or b'"isError":true' in bytes(answer.result)
    return "refused" if is_refused else "passed"


def expected(need: str, exists: bool, profile: str) -> set[str]:
    if not exists or profile not in OPENS[need]:
        return {"refused"}
    return {"own": {"passed"}, "all": {"passed", "reached"}}.get(need, {"reached"})


def make_endpoint(front: Front, place: str, policy: PolicyEngine) -> None:
    methods = MethodTable()
    methods.register(OwnMethods())
    whole = AllServersEndpoint(
        front.servers,
        front.call_gate,
        front.underway,
        front.bridge,
        front.subscriptions,
        front.info,
        methods=methods,
    )
    front.desk = whole
    if place == "view":
        views = ViewService(front.catalog, policy)
        views.replace([View("v", select=("srv/*",))])
        view = views.get("v")
        assert view is not None
        front.desk = ViewEndpoint(view, views, whole)


@asynccontextmanager
async def opened_at(place: str, script: Script, policy: PolicyEngine) -> AsyncGenerator[Front]:
    gate = functools.partial(CallGate, policy_engine=policy)
    opened = one_server(script, make_gate=gate)
    if place != "server":
        opened = all_servers({"srv": script}, make_gate=gate)
    async with opened as front:
        if place != "server":
            make_endpoint(front, place, policy)
        yield front


async def failing_cells(place: str, modern: bool, profile: str) -> tuple[int, list[str]]:
    script, wrong, count = scripted(modern), list[str](), 0
    async with opened_at(place, script, policy_for(profile)) as front:
        session = None if modern else await front.client(ANA, **CAPABILITIES)
        for name, versions, needs in rows():
            exists = versions in ("both", "modern" if modern else "legacy")
            allowed = expected(needs[ENDPOINTS.index(place)], exists, profile)
            found = await outcome(front, session, script, name, place)
            count += 1
            if found not in allowed:
                cell = f"{name} at {place}, {'modern' if modern else 'legacy'}, {profile}"
                wrong.append(f"{cell}: {found}, not {sorted(allowed)}")
    return count, wrong


NOTIFICATIONS: Final = {
    protocol.INITIALIZED: ("dropped", "dropped", "own"),
    protocol.ROOTS_CHANGED: ("own", "own", "own"),
    protocol.CANCELLED: ("dropped", "dropped", "dropped"),
    protocol.PROGRESS: ("dropped", "dropped", "dropped"),
    "featureSets/update": ("dropped", "dropped", "dropped"),
    "channels/outgoing/chunk": ("dropped", "dropped", "dropped"),
    "mgp/access/grant": ("dropped", "dropped", "dropped"),
    "vendor/unknown": ("dropped", "dropped", "verb"),
}
"""What the connection of the session itself gets, at the gateway, in a view and at one server."""


async def test_no_notification_passes_by_accident() -> None:
    cells, wrong = 0, list[str]()
    for place in ENDPOINTS:
        for profile in GRANTS:
            script = scripted(modern=False)
            policy = policy_for(profile if profile != "tool" else "everything")
            async with opened_at(place, script, policy) as front:
                session = await front.client(ANA)
                await front.ask(
                    session, "tools/call", params_for("tools/call", place), ANA
                ).answer()
                for name, needs in NOTIFICATIONS.items():
                    need, cells = needs[ENDPOINTS.index(place)], cells + 1
                    before = [len(each.told()) for each in script.carriers]
                    front.desk.handle_message(session, jsonrpc.make_notification(name), ANA)
                    told = [len(each.told()) for each in script.carriers]
                    used = bool(session.own_connections)
                    passes = need == "own" or profile in {*OPENS["verb"], "tool"}
                    after = list(before)
                    if used and need != "dropped" and passes:
                        after[-1] += 1
                    if told != after:
                        wrong.append(f"{name} at {place}, {profile}: {told}, not {after}")
    assert not wrong, "\n".join(wrong)
    assert cells == len(ENDPOINTS) * len(GRANTS) * len(NOTIFICATIONS)


def test_every_method_of_the_gateway_is_in_the_table() -> None:
    written = {name for name, _, _ in rows()}
    assert set(REQUESTS) <= written
    for prefix, _ in FAMILIES:
        assert any(name.startswith(prefix) for name in written - set(REQUESTS)), prefix


async def test_no_cell_of_the_matrix_is_open_by_accident() -> None:
    cells, wrong = 0, list[str]()
    for place in ENDPOINTS:
        for modern in (False, True):
            for profile in GRANTS:
                count, found = await failing_cells(place, modern, profile)
                cells, wrong = cells + count, wrong + found
    assert not wrong, "\n".join(wrong)
    assert cells >= 2_000
