"""How a server is reached: protocol version, permissions, and connections that sessions share."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import Raw

from comity.errors import EXHAUSTED, METHOD_NOT_FOUND, MalformedMessage, Unavailable
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.entries import EntryKind
from comity.mcp.jsonrpc import LIMITS, Frame
from comity.mcp.mgp import ServerLifecycleState
from comity.mcp.protocol import Era
from comity.policy.grants import PERMISSION_VERB, Effect, Grant, GrantSet
from comity.policy.risk import ApprovalPolicy, PermissionDenialAction, ServerPolicy
from comity.policy.server_permissions import PermissionService
from comity.policy.snapshot import GrantSnapshot
from comity.servers.connection_users import MAX_FOLLOWED_RESOURCES, ConnectionUsers
from comity.servers.connections import (
    MAX_EXTENDED_CONNECTIONS,
    STAND_IN_CAPABILITIES,
    SharedConnection,
    SharedConnections,
    extended_terms,
    with_stand_ins,
)
from comity.servers.supervisor import ServerOptions
from comity.sessions.calls import ActiveCalls, Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from comity.sessions.upstream import TransportAccount, TransportListener, UpstreamConnection
from tests.support.carriers import (
    SILENCE,
    Clock,
    Params,
    Reply,
    Script,
    ScriptedCarrier,
    discovered,
    hello,
    params_of,
    settled,
    until,
)
from tests.support.cases import loop_over
from tests.support.server_house import connected, options, standing, tools

both_kinds = loop_over("process", [False, True], ids=["http", "stdio"])


@both_kinds
async def test_a_server_of_the_modern_era_only_is_reached_by_it(process: bool) -> None:
    async with standing() as house:
        replies: dict[str, Reply] = {protocol.LIST_TOOLS: tools("a")}
        script = Script(starts_process=process, handshake=False, modern=True, replies=replies)
        server = await connected(house, script)
        assert server.connections.eras == {Era.MODERN}
        assert house.catalog.count("srv", EntryKind.TOOL) == 1
        (carrier,) = script.open
        assert server.connections.modern_connection().transport is carrier


async def test_over_http_both_eras_are_found_at_the_start() -> None:
    async with standing() as house:
        server = await connected(house, Script(modern=True))
        assert server.connections.eras == {Era.HANDSHAKE, Era.MODERN}


async def test_a_process_that_shakes_hands_is_never_asked_for_the_other_era() -> None:
    async with standing() as house:
        script = Script(starts_process=True, modern=True)
        server = await connected(house, script)
        assert (server.connections.eras, len(script.carriers)) == ({Era.HANDSHAKE}, 1)
        assert script.last.asked(protocol.DISCOVER) == []


@loop_over(
    "answer",
    [Unavailable("Method not found"), SILENCE, [], "x", {"supportedVersions": ["1999-01-01"]}],
    ids=["refused", "silent", "a list", "a word", "an older version"],
)
@both_kinds
async def test_a_server_that_answers_discovery_oddly_still_works_in_its_own_era(
    process: bool, answer: object
) -> None:
    async with standing() as house:
        script = Script(starts_process=process, replies={protocol.DISCOVER: answer})
        server = await connected(house, script, options(start_ms=400))
        with pytest.raises(Unavailable):
            server.connections.modern_connection()
        server.require_usable()
        assert len(script.open) == 1, "what was opened for the probe is closed"


async def test_a_changed_list_is_read_again() -> None:
    async with standing() as house:
        script = Script(replies={protocol.LIST_TOOLS: tools("a")})
        await connected(house, script)
        script.replies[protocol.LIST_TOOLS] = tools("a", "b")
        script.open[-1].says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
        await until(lambda: house.catalog.count("srv", EntryKind.TOOL) == 2)


async def test_a_flood_of_changes_is_read_one_reading_at_a_time_and_the_last_one_counts() -> None:
    async with standing() as house:
        script = Script(replies={protocol.LIST_TOOLS: tools("a")})
        await connected(house, script)
        carrier = script.open[-1]
        script.replies[protocol.LIST_TOOLS] = SILENCE
        for _ in range(500):
            carrier.says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
        await settled()
        assert len(carrier.asked(protocol.LIST_TOOLS)) == 2
        carrier.says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
        await settled()
        script.replies[protocol.LIST_TOOLS] = tools("a", "b", "c")
        carrier.answers(carrier.asked(protocol.LIST_TOOLS)[-1], tools("a", "b"))
        await until(lambda: house.catalog.count("srv", EntryKind.TOOL) == 3)
        assert len(carrier.asked(protocol.LIST_TOOLS)) == 3


async def test_a_list_that_cannot_be_read_again_changes_nothing() -> None:
    async with standing() as house:
        script = Script(replies={protocol.LIST_TOOLS: tools("a")})
        server = await connected(house, script)
        script.replies[protocol.LIST_TOOLS] = {"tools": "none"}
        script.open[-1].says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
        await settled()
        assert house.catalog.count("srv", EntryKind.TOOL) == 1
        assert server.state is ServerLifecycleState.CONNECTED


async def test_over_http_each_session_has_a_link_of_its_own() -> None:
    async with standing() as house:
        script = Script()
        server = await connected(house, script)
        sessions = [Session("", 0), Session("", 0)]
        for session in sessions:
            session.store_client_info({"who": Raw(b'"me"')})
        links = [
            (await server.connections.connection_for(each, is_initialized=True))
            for each in sessions
        ]
        assert links[0][0] is not links[1][0]
        assert [sharers for _, sharers in links] == [None, None]
        assert params_of(script.last.asked(protocol.INITIALIZE)[0]) == {"who": "me"}
        assert (await server.connections.connection_for(sessions[0], is_initialized=True))[
            0
        ] is links[0][0]


async def test_a_link_that_its_client_greets_is_opened_without_a_word() -> None:
    async with standing() as house:
        script = Script()
        server = await connected(house, script)
        await server.connections.connection_for(Session("", 0), is_initialized=False)
        assert script.last.sent == []


async def test_stdio_is_shared_unless_each_session_shall_have_a_process() -> None:
    async with standing() as house:
        script = Script(starts_process=True)
        server = await connected(house, script)
        for _ in range(3):
            _, sharers = await server.connections.connection_for(
                Session("", 0), is_initialized=True
            )
            assert sharers is not None
        assert len(script.carriers) == 1
    async with standing() as house:
        script = Script(starts_process=True)
        server = await connected(house, script, options(own_process=True))
        for _ in range(3):
            await server.connections.connection_for(Session("", 0), is_initialized=True)
        assert len(script.carriers) == 4


SAYS: Params = {
    "version": "0.3.0",
    "extensions": ["security"],
    "permissions_required": ["camera"],
    "trust_level": "sandboxed",
}

WAIT, TELL = "mgp/permission/request", "mgp/permission/response"

HEARS: dict[str, object] = {WAIT: {}, TELL: {}}

ASKING = ServerPolicy(approval=ApprovalPolicy.INTERACTIVE)


class Office:
    def __init__(self, policy: ServerPolicy = ASKING) -> None:
        self.grants = GrantSnapshot(GrantSet.from_grants(()))
        self.permits = PermissionService(lambda _: policy, self.grants, lambda: self.grants.latest)

    @property
    def options(self) -> ServerOptions:
        plain = options()
        return replace(
            plain,
            connections=replace(
                plain.connections, on_introduction=self.permits.decide_introduction
            ),
        )


EXTENDED = discovered(tools={}, extensions={"dev.comity/mgp": SAYS})


@loop_over("era", ["handshake", "modern"])
async def test_a_server_of_either_era_is_told_to_wait_and_what_was_decided(era: str) -> None:
    script = Script(replies={protocol.INITIALIZE: hello(tools={}, mgp=SAYS), **HEARS})
    if era == "modern":
        replies = {protocol.DISCOVER: EXTENDED, **HEARS}
        script = Script(modern=True, handshake=False, replies=replies)
    office = Office()
    async with standing() as house:
        server = house.add("srv", script, office.options)
        house.servers.start()
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        (carrier,) = [each for each in script.open if each.asked(WAIT)]
        methods = [str(sent.frame.method) for sent in carrier.sent]
        opened = protocol.DISCOVER if era == "modern" else protocol.INITIALIZE
        begins = [protocol.INITIALIZED] if era == "handshake" else []
        assert methods[: 2 + len(begins)] == [opened, WAIT, *begins]
        assert methods.index(WAIT) < methods.index(protocol.LIST_TOOLS)
        assert params_of(carrier.asked(WAIT)[0])["permissions"] == ["camera"]
        assert office.permits.permissions_of("srv").trust_level == "sandboxed"
        approved = Grant(
            "server:srv", PERMISSION_VERB, "camera", Effect.ALLOW, granted_by="person:ana"
        )
        office.grants.replace(GrantSet.from_grants([approved]))
        office.permits.renew_due_decisions()
        await office.permits.wait_until_told()
        told = params_of(carrier.asked(TELL)[0])
        assert told["grants"] == {"camera": "approved"}
        assert ("_meta" in told) is (era == "modern")


async def test_a_server_that_does_not_speak_of_security_is_told_nothing() -> None:
    silent = {**SAYS, "extensions": ["lifecycle"]}
    script = Script(replies={protocol.INITIALIZE: hello(tools={}, mgp=silent)})
    office = Office()
    async with standing() as house:
        server = house.add("srv", script, office.options)
        house.servers.start()
        await until(lambda: server.state is ServerLifecycleState.CONNECTED)
        assert not any(each.asked(WAIT) for each in script.carriers)
    assert list(office.permits.permissions_of("srv").decision_by_name) == ["camera"]


@loop_over("modern", [False, True])
async def test_a_rejected_server_never_begins(modern: bool) -> None:
    script = Script(replies={protocol.INITIALIZE: hello(tools={}, mgp=SAYS), **HEARS})
    if modern:
        script = Script(modern=True, handshake=False, replies={protocol.DISCOVER: EXTENDED})
    office = Office(ServerPolicy(ApprovalPolicy.DENY_ALL, on_denied=PermissionDenialAction.REJECT))
    async with standing() as house:
        server = house.add("srv", script, office.options)
        house.servers.start()
        await until(server.first_start_tried.is_set)
        assert server.state is not ServerLifecycleState.CONNECTED
        assert "lacks permissions: camera" in server.reason
        sent = [sent.frame.method for each in script.carriers for sent in each.sent]
        assert protocol.INITIALIZED not in sent
        assert protocol.LIST_TOOLS not in sent


class Den:
    """A stdio server that several sessions share."""

    def __init__(self, sessions: int) -> None:
        self.changes: list[str] = []
        self.ends: list[str] = []
        self.sharers = ConnectionUsers(
            self.changes.append, lambda link, because: self.ends.append(because)
        )
        self.sessions = [Session("", 0) for _ in range(sessions)]
        for session in self.sessions:
            self.sharers.attach(session)
        self.script = Script(starts_process=True)
        self.carrier: ScriptedCarrier = self.script.create_transport(Era.HANDSHAKE)
        self.link = UpstreamConnection("srv", self.carrier, self.sharers, LIMITS)
        self._underway = ActiveCalls(Clock(), 60, 300, 600)

    def call(self, session: Session | None, number: int = 1) -> Call:
        frame = jsonrpc.make_request(number, "tools/call", {})
        call = self._underway.begin(frame, ClientStream(), session)
        self.link.send_call(call, frame)
        return call

    def answers(self) -> list[Frame]:
        return [frame for frame in self.carrier.told() if jsonrpc.is_response(frame)]


async def opened(sessions: int) -> Den:
    den = Den(sessions)
    await den.link.open()
    return den


def methods_in(outbox: ClientStream) -> list[object]:
    return [jsonrpc.decode_frame(data).method for data in outbox.take()]


def message(level: object) -> Frame:
    return jsonrpc.make_notification(protocol.MESSAGE, {"level": level, "data": "x"})


NOTE = jsonrpc.make_notification("vendor/note")

ASK = jsonrpc.make_request("q", "vendor/ask")


async def test_how_a_server_fares_is_told_to_all_who_agreed_with_it_and_to_nobody_else() -> None:
    den = await opened(4)
    declared = jsonrpc.to_raw({"mgp": {"version": "0.3.0", "extensions": ["lifecycle"]}})
    for session in den.sessions[:3]:
        session.store_client_info({"capabilities": declared})
    den.sessions[2].sees_all_servers = True
    call = den.call(den.sessions[3])
    den.carrier.says(jsonrpc.make_notification("notifications/mgp.lifecycle", {}))
    heard = [methods_in(session.standalone) for session in den.sessions]
    assert heard == [["notifications/mgp.lifecycle"]] * 2 + [[], []]
    assert methods_in(call.client_stream) == []


async def test_what_is_said_while_one_client_waits_is_that_clients() -> None:
    den = await opened(2)
    den.call(den.sessions[0])
    call = den.call(den.sessions[0], 2)
    den.carrier.says(NOTE)
    den.carrier.says(ASK)
    assert methods_in(call.client_stream) == ["vendor/note", "vendor/ask"]
    assert [methods_in(session.standalone) for session in den.sessions] == [[], []]


async def test_where_two_clients_wait_nobody_is_guessed_at() -> None:
    den = await opened(2)
    calls = [den.call(session) for session in den.sessions]
    den.carrier.says(NOTE)
    den.carrier.says(message("error"))
    den.carrier.says(ASK)
    outboxes = [call.client_stream for call in calls] + [each.standalone for each in den.sessions]
    assert [methods_in(outbox) for outbox in outboxes] == [[]] * 4
    (refusal,) = den.answers()
    error = jsonrpc.error_of(refusal)
    assert error is not None
    assert error.code == METHOD_NOT_FOUND.code
    assert 'process_per = "session"' in error.message


@loop_over(("clients", "is_heard"), [(0, False), (1, True), (2, False)])
async def test_only_client_hears_what_belongs_to_no_call(clients: int, is_heard: bool) -> None:
    den = await opened(clients)
    den.carrier.says(NOTE)
    den.carrier.says(ASK)
    heard = ["vendor/note", "vendor/ask"] if is_heard else []
    assert [methods_in(session.standalone) for session in den.sessions] == [heard] * clients
    refusals = [jsonrpc.error_of(frame) is not None for frame in den.answers()]
    assert refusals == ([] if is_heard else [True])


async def test_the_gateways_own_requests_are_nobodys_call() -> None:
    den = await opened(1)
    asking = asyncio.ensure_future(den.link.request("silent"))
    await settled()
    den.carrier.says(NOTE)
    assert methods_in(den.sessions[0].standalone) == ["vendor/note"]
    asking.cancel()
    await asyncio.wait([asking])


async def test_two_requests_that_stand_alone_are_two_clients() -> None:
    den = await opened(0)
    first = den.call(None)
    den.carrier.says(NOTE)
    second = den.call(None)
    den.carrier.says(NOTE)
    assert [methods_in(first.client_stream), methods_in(second.client_stream)] == [
        ["vendor/note"],
        [],
    ]


async def test_a_client_that_left_is_not_told_and_not_asked() -> None:
    den = await opened(2)
    den.sharers.detach(den.sessions[0])
    assert len(den.sharers) == 1
    assert den.sessions[0] not in den.sharers
    den.carrier.says(NOTE)
    assert methods_in(den.sessions[0].standalone) == []
    assert methods_in(den.sessions[1].standalone) == ["vendor/note"]


async def test_changes_of_lists_are_told_to_all() -> None:
    den = await opened(3)
    den.sessions[2].sees_all_servers = True
    den.carrier.says(jsonrpc.make_notification(protocol.TOOLS_CHANGED))
    told = [methods_in(session.standalone) for session in den.sessions]
    assert told == [[protocol.TOOLS_CHANGED], [protocol.TOOLS_CHANGED], []]


async def test_a_server_that_began_anew_may_have_changed_everything() -> None:
    den = await opened(1)
    den.link.on_session_renewed()
    assert sorted(den.changes) == sorted(protocol.LIST_CHANGES)
    quiet = ConnectionUsers(None, lambda link, because: None)
    quiet.on_session_renewed(den.link)
    quiet.on_notification(den.link, jsonrpc.make_notification(protocol.TOOLS_CHANGED))


async def test_the_end_of_the_link_is_passed_on() -> None:
    den = await opened(1)
    den.carrier.dies("exit status 1")
    assert den.ends == ["exit status 1"]


async def test_only_who_follows_a_resource_hears_of_it() -> None:
    den = await opened(3)
    first, second, _ = den.sessions
    for session in (first, second):
        den.sharers.follow(session, "x:1")
    den.sharers.follow(second, "x:2")
    for uri in ("x:1", "x:2", "x:3"):
        den.carrier.says(jsonrpc.make_notification(protocol.RESOURCE_UPDATED, {"uri": uri}))
    assert [len(methods_in(session.standalone)) for session in den.sessions] == [1, 2, 0]


async def test_only_the_last_to_leave_a_resource_ends_its_subscription() -> None:
    den = await opened(2)
    first, second = den.sessions
    for session in (first, second):
        den.sharers.follow(session, "x:1")
        den.sharers.follow(session, "x:1")
    assert not den.sharers.unfollow(first, "x:1")
    assert not den.sharers.unfollow(first, "x:1")
    assert den.sharers.unfollow(second, "x:1")
    assert not den.sharers.unfollow(second, "x:1")


async def test_a_session_follows_only_so_many_resources() -> None:
    den = await opened(2)
    first, second = den.sessions
    for number in range(MAX_FOLLOWED_RESOURCES):
        den.sharers.follow(first, f"x:{number}")
    den.sharers.follow(first, "x:0")
    den.sharers.follow(second, "x:more")
    with pytest.raises(MalformedMessage) as caught:
        den.sharers.follow(first, "x:more")
    assert caught.value.fault is EXHAUSTED
    assert len(den.sharers.detach(first)) == MAX_FOLLOWED_RESOURCES


async def test_who_leaves_unfollows_everything() -> None:
    den = await opened(2)
    first, second = den.sessions
    den.sharers.follow(first, "x:1")
    den.sharers.follow(first, "x:2")
    den.sharers.follow(second, "x:2")
    assert den.sharers.detach(first) == ["x:1"]
    assert den.sharers.detach(second) == ["x:2"]


async def test_the_most_talkative_level_that_anybody_asked_for_counts() -> None:
    den = await opened(4)
    assert den.sharers.lowest_level() is None
    for session, level in zip(den.sessions, ("error", "info", "critical", "nonsense"), strict=True):
        session.log_level = level
    assert den.sharers.lowest_level() == "info"
    den.sharers.detach(den.sessions[1])
    assert den.sharers.lowest_level() == "error"


@loop_over(
    ("wanted", "level", "heard"),
    [
        (None, "debug", True),
        ("warning", "info", False),
        ("warning", "warning", True),
        ("warning", "error", True),
        ("warning", "nonsense", True),
        ("nonsense", "debug", True),
        ("warning", 5, True),
    ],
)
async def test_a_log_message_reaches_whom_it_is_loud_enough_for(
    wanted: str | None, level: object, heard: bool
) -> None:
    den = await opened(1)
    (session,) = den.sessions
    session.log_level = wanted
    den.carrier.says(message(level))
    assert bool(methods_in(session.standalone)) is heard
    call = den.call(session)
    den.carrier.says(message(level))
    assert bool(methods_in(call.client_stream)) is heard


WITHIN = timedelta(seconds=5)

MGP = {"mgp": {"version": "0.6"}}


def _no_matter(link: UpstreamConnection, because: str) -> None: ...


class Inn:
    """One stdio server with the gateway's own link to it."""

    def __init__(self) -> None:
        self.script = Script(starts_process=True)
        self.plain = self._make(_no_matter)
        self.links = SharedConnections("srv", WITHIN, self._make)

    def _make(self, gone: Callable[[UpstreamConnection, str], None]) -> SharedConnection:
        sharers = ConnectionUsers(None, gone)
        return SharedConnection(
            UpstreamConnection("srv", self.script.create_transport(Era.HANDSHAKE), sharers, LIMITS),
            sharers,
        )

    async def find(self, session: Session) -> SharedConnection:
        async with asyncio.timeout(10):
            return await self.links.find_or_open(session, self.plain)

    @property
    def opened(self) -> int:
        """Links beside the gateway's own."""
        return len(self.script.carriers) - 1


def client(**capabilities: object) -> Session:
    session = Session("", 0)
    session.store_client_info({"capabilities": jsonrpc.to_raw(capabilities), "x": Raw(b"1")})
    return session


async def test_plain_clients_share_the_gateways_own_link() -> None:
    inn = Inn()
    clients = [client(), client(sampling={}, roots={"listChanged": True}), client(experimental={})]
    assert [await inn.find(each) for each in clients] == [inn.plain] * 3
    assert inn.opened == 0
    assert len(inn.plain.users) == 3


async def test_clients_with_equal_extended_terms_share_and_others_do_not() -> None:
    inn = Inn()
    one, same = client(mgp={"a": 1, "b": 2}), client(mgp={"b": 2, "a": 1})
    other, more = client(mgp={"a": 2}), client(mgp={"a": 1, "b": 2}, sampling={})
    first = await inn.find(one)
    assert await inn.find(same) is first
    assert await inn.find(one) is first
    found = {id(await inn.find(each)) for each in (other, more)}
    assert len(found | {id(first)}) == 3
    assert inn.opened == 3
    assert first is not inn.plain
    old = client(mgp={"a": 1, "b": 2})
    old.version = "2024-11-05"
    assert extended_terms(old) != extended_terms(one)


async def test_a_link_is_greeted_with_what_its_first_client_said() -> None:
    inn = Inn()
    await inn.find(client(**MGP))
    (asked,) = inn.script.last.asked(protocol.INITIALIZE)
    assert params_of(asked) == {"capabilities": MGP, "x": 1}


async def test_clients_that_come_at_once_open_one_link() -> None:
    inn = Inn()
    async with asyncio.timeout(10):
        found = await asyncio.gather(*(inn.find(client(**MGP)) for _ in range(5)))
    assert inn.opened == 1
    assert len(found[0].users) == 5


async def test_a_link_is_closed_when_the_last_of_its_clients_leaves() -> None:
    inn = Inn()
    first, second = client(**MGP), client(**MGP)
    shared = await inn.find(first)
    await inn.find(second)
    await first.close()
    await settled()
    assert shared.connection.is_open
    await second.close()
    await until(lambda: not shared.connection.is_open)
    assert inn.script.open == []
    assert await inn.find(client(**MGP)) is not shared


async def test_the_gateways_own_link_stays_when_all_have_left() -> None:
    inn = Inn()
    await inn.plain.connection.open()
    session = client()
    await inn.find(session)
    await session.close()
    await settled()
    assert inn.plain.connection.is_open
    assert len(inn.plain.users) == 0


async def test_what_only_who_left_followed_is_unsubscribed() -> None:
    inn = Inn()
    await inn.plain.connection.open()
    session, other = client(), client()
    for each in (session, other):
        (await inn.find(each)).users.follow(each, "x:1")
    inn.plain.users.follow(session, "x:2")
    await session.close()
    await settled()
    carrier = inn.script.carriers[0]
    assert [params_of(frame) for frame in carrier.asked(protocol.UNSUBSCRIBE)] == [{"uri": "x:2"}]
    await inn.plain.connection.close()
    await settled()


async def test_there_are_only_so_many_kinds_of_clients() -> None:
    inn = Inn()
    kinds = [client(mgp={"n": number}) for number in range(MAX_EXTENDED_CONNECTIONS + 1)]
    opening = [asyncio.ensure_future(inn.find(each)) for each in kinds]
    async with asyncio.timeout(10):
        found = await asyncio.gather(*opening, return_exceptions=True)
    (refused,) = [each for each in found if isinstance(each, BaseException)]
    assert isinstance(refused, Unavailable)
    assert refused.fault is EXHAUSTED
    assert inn.opened == MAX_EXTENDED_CONNECTIONS
    await kinds[0].close()
    await inn.find(kinds[-1])


async def test_a_link_that_died_is_opened_again_and_the_dead_one_forgotten() -> None:
    inn = Inn()
    session = client(**MGP)
    for number in range(1, 6):
        shared = await inn.find(session)
        assert (inn.opened, len(session.on_close)) == (number, 1)
        assert session.shared_connections == {"srv": shared.connection}
        inn.script.last.dies()


async def test_a_client_that_changes_its_terms_leaves_the_link_it_had() -> None:
    inn = Inn()
    session = client(**MGP)
    first = await inn.find(session)
    session.store_client_info({"capabilities": jsonrpc.to_raw({"mgp": {"version": "2"}})})
    second = await inn.find(session)
    assert second is not first
    await until(lambda: not first.connection.is_open)
    await session.close()
    await until(lambda: not second.connection.is_open)


async def test_a_link_whose_only_client_left_meanwhile_is_not_kept() -> None:
    inn = Inn()
    inn.script.replies[protocol.INITIALIZE] = SILENCE
    session = client(**MGP)
    finding = asyncio.ensure_future(inn.find(session))
    await settled()
    await session.close()
    inn.script.last.answers(inn.script.last.asked(protocol.INITIALIZE)[0], _welcome())
    with pytest.raises(Unavailable):
        await finding
    assert inn.script.open == []


async def test_a_link_whose_client_gave_up_waiting_is_that_clients_all_the_same() -> None:
    inn = Inn()
    inn.script.replies[protocol.INITIALIZE] = SILENCE
    session = client(**MGP)
    finding = asyncio.ensure_future(inn.find(session))
    await settled()
    finding.cancel()
    await asyncio.wait([finding])
    inn.script.last.answers(inn.script.last.asked(protocol.INITIALIZE)[0], _welcome())
    await settled()
    assert (await inn.find(session)).connection.is_open
    assert inn.opened == 1
    await session.close()
    await until(lambda: not inn.script.open)


async def test_a_client_that_has_ended_is_attached_to_nothing() -> None:
    inn = Inn()
    session = client()
    await session.close()
    with pytest.raises(Unavailable):
        await inn.find(session)
    assert len(inn.plain.users) == 0


async def test_closing_ends_what_is_open_and_what_is_being_opened() -> None:
    inn = Inn()
    await inn.find(client(**MGP))
    inn.script.replies[protocol.INITIALIZE] = SILENCE
    waiting = asyncio.ensure_future(inn.find(client(mgp={"n": 1})))
    await settled()
    async with asyncio.timeout(10):
        await inn.links.close()
    with pytest.raises(Unavailable):
        await waiting
    assert inn.script.open == []
    del inn.script.replies[protocol.INITIALIZE]
    await inn.find(client(mgp={"n": 1}))


async def test_a_server_that_refuses_the_handshake_is_asked_again_next_time() -> None:
    inn = Inn()
    inn.script.replies[protocol.INITIALIZE] = Unavailable("no")
    for _ in range(2):
        with pytest.raises(Unavailable, match="refused the handshake"):
            await inn.find(client(**MGP))
    assert (inn.opened, inn.script.open) == (2, [])


@loop_over("declared", [b'{"mgp":{"a":1,"a":2}}', b'{"mgp":1e999}'])
def test_terms_that_cannot_be_read_are_refused(declared: bytes) -> None:
    session = Session("", 0)
    session.store_client_info({"capabilities": Raw(declared)})
    with pytest.raises(MalformedMessage):
        extended_terms(session)


def _welcome() -> dict[str, object]:
    return {"protocolVersion": protocol.LATEST_HANDSHAKE, "capabilities": {}}


STAND_INS: list[tuple[dict[str, object], dict[str, object]]] = [
    ({}, {"form": {}}),
    ({"elicitation": {"url": {}}}, {"url": {}}),
]


@loop_over(("said", "heard"), STAND_INS)
def test_where_people_stand_in_a_server_hears_so_but_for_what_its_client_said(
    said: dict[str, object], heard: dict[str, object]
) -> None:
    hello = jsonrpc.to_raw({"protocolVersion": "1", "capabilities": {"roots": {}, **said}})
    assert jsonrpc.decode_value(with_stand_ins(hello, STAND_IN_CAPABILITIES)) == {
        "protocolVersion": "1",
        "capabilities": {"roots": {}, "elicitation": heard},
    }


class AccountCarrier(ScriptedCarrier):
    """A carrier whose requests can have the token of an account."""

    account: TransportAccount | None = None
    has_fixed_credentials = False

    def attach(self, listener: TransportListener) -> None:
        self.receiver, self.is_open = listener, True


class AccountScript(Script):
    """A server whose carriers can have an account."""

    def create_transport(self, era: Era) -> ScriptedCarrier:
        made = AccountCarrier(self, era)
        self.carriers.append(made)
        return made


async def test_a_bounded_key_does_not_share_the_connection_of_a_wider_key() -> None:
    async with standing() as house:
        server = await connected(house, AccountScript(modern=True))
        server.connections.set_own_accounts(has_own_accounts=True)
        actors = (
            Actor("agent:ci"),
            Actor("agent:ci", permissions=(("tools/call", "srv/*"),)),
            Actor("agent:ci", excluded=("account/",)),
        )
        opened = [server.connections.modern_connection(each) for each in actors]
        bridges = [await server.connections.bridge_connection({}, each) for each in actors]
        assert len({id(each) for each in (*opened, *bridges)}) == 6
        assert server.connections.modern_connection(actors[1]) is opened[1]
