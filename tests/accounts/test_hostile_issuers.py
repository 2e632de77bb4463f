"""Authorization servers that lie: no token and no secret goes where it was not agreed."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from typing import Any

import pytest

from comity.accounts.issuers import redirect_uri_for
from comity.accounts.messages import OAuthClientCredentials, read_challenge
from comity.accounts.model import SHARED, AccountKey, AccountPolicy
from comity.errors import Unavailable
from tests.accounts.account_node import ANA, ORIGIN, AccountNode, an_account_node
from tests.accounts.hostile_server import (
    HostileAnswer,
    HostilePort,
    HostileRequest,
    HostileServer,
    a_hostile_port,
    json_answer,
)
from tests.support.inline_store import inline_records

SECRET = "secret-of-the-operator"
REDIRECT = redirect_uri_for(ORIGIN, "evil")


@pytest.fixture
def hostile() -> Generator[HostilePort]:
    with a_hostile_port() as made:
        yield made


@pytest.fixture
async def node() -> AsyncGenerator[AccountNode]:
    async with an_account_node(inline_records()) as made:
        yield made


def policy_of(server: HostileServer) -> AccountPolicy:
    return AccountPolicy(server.name, f"{server.url}/mcp", "each")


def name_issuers(server: HostileServer, *issuers: HostileServer) -> None:
    named = [each.url for each in issuers]
    server.resource = lambda _: json_answer(
        {**server.resource_document(), "authorization_servers": named}
    )


def configured_client(policy: AccountPolicy, issuer: HostileServer) -> AccountPolicy:
    client = OAuthClientCredentials("comity", SECRET)
    return replace(policy, issuer=issuer.url, client=client)


async def connect_at_an_earlier_issuer(
    hostile: HostilePort, node: AccountNode
) -> tuple[AccountPolicy, HostileServer]:
    """Connect at an issuer that guesses the id of the operator's client at another one."""
    evil, honest = hostile["evil"], hostile["honest"]
    name_issuers(evil, evil, honest)
    evil.registration = lambda request: json_answer(
        {**json.loads(request.body), "client_id": "comity"}, 201
    )
    node.configure(policy_of(evil))
    await node.connect("evil")
    return configured_client(policy_of(evil), honest), evil


async def test_a_secret_stays_away_from_the_issuer_of_an_earlier_account(
    hostile: HostilePort, node: AccountNode
) -> None:
    policy, evil = await connect_at_an_earlier_issuer(hostile, node)
    node.configure(policy)
    evil.valid.clear()
    assert await node.renew("evil") is None
    assert SECRET not in str(evil.requests)


async def test_a_secret_stays_away_from_the_issuer_of_a_sign_in_that_has_begun(
    hostile: HostilePort, node: AccountNode
) -> None:
    policy, evil = await connect_at_an_earlier_issuer(hostile, node)
    cookie, answer = await node.callback("evil")
    node.configure(policy)
    with pytest.raises(Unavailable, match="does not name the issuer"):
        await node.service.finish_sign_in(ANA, cookie, answer, ORIGIN, "evil")
    assert SECRET not in str(evil.requests)


async def test_a_disconnected_account_of_an_earlier_issuer_is_revoked_without_the_secret(
    hostile: HostilePort, node: AccountNode
) -> None:
    policy, evil = await connect_at_an_earlier_issuer(hostile, node)
    node.configure(policy)
    await node.service.disconnect(AccountKey("evil", ANA), ANA)
    assert SECRET not in str(evil.requests)


# Registrations.


async def register(hostile: HostilePort, node: AccountNode, **changes: object) -> None:
    """Connect at an issuer whose registration answers with other members. None leaves one out."""
    server = hostile["evil"]

    def answer(request: HostileRequest) -> HostileAnswer:
        members = {**json.loads(request.body), "client_id": "a", "client_secret": "b", **changes}
        return json_answer({name: each for name, each in members.items() if each is not None}, 201)

    server.registration = answer
    node.configure(policy_of(server))
    await node.connect("evil")


@pytest.mark.parametrize(
    "changes",
    [
        {"client_id": None},
        {"client_id": ""},
        {"client_id": 7},
        {"client_id": ["a"]},
        {"client_id": "a\r\nx-admin: 1"},
        {"client_id": "a" * 2_000},
        {"client_id": "\u00e9"},
        {"client_secret": 7},
        {"client_secret": "a\nb"},
        {"client_secret": {"a": "b"}},
        {"redirect_uris": []},
        {"redirect_uris": "https://comity.example.org/accounts/callback/evil"},
        {"redirect_uris": ["https://evil.example/callback"]},
        {"redirect_uris": [REDIRECT, "https://evil.example/callback"]},
        {"redirect_uris": [REDIRECT, {"uri": "https://evil.example/callback"}]},
        {"token_endpoint_auth_method": "private_key_jwt"},
        {"token_endpoint_auth_method": "tls_client_auth"},
        {"token_endpoint_auth_method": "client_secret_jwt"},
        {"token_endpoint_auth_method": "CLIENT_SECRET_BASIC"},
        {"token_endpoint_auth_method": ["client_secret_basic"]},
        {"token_endpoint_auth_method": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_registration_with_hostile_members_is_refused(
    hostile: HostilePort, node: AccountNode, changes: dict[str, Any]
) -> None:
    with pytest.raises(Unavailable, match="registered"):
        await register(hostile, node, **changes)
    assert not hostile["evil"].requests_to("/token")


async def test_a_public_client_sends_no_secret(hostile: HostilePort, node: AccountNode) -> None:
    await register(hostile, node, client_secret=SECRET, token_endpoint_auth_method="none")
    assert SECRET not in str(hostile["evil"].requests_to("/token"))


# Resources.


@pytest.mark.parametrize("resource", ["", "/evil", "/evil/"])
async def test_a_path_of_an_origin_gets_no_token_for_its_neighbours(
    hostile: HostilePort, node: AccountNode, resource: str
) -> None:
    """Whoever serves one path of an origin writes its challenge, and not its well-known files."""
    server = hostile["evil"]
    document = {**server.resource_document(), "resource": f"{server.origin}{resource}"}
    hostile.root = lambda _: json_answer(document)
    policy = policy_of(server)
    node.configure(policy)
    challenge = f'Bearer resource_metadata="{server.url}/register"'
    server.registration = lambda _: json_answer(document)
    found = read_challenge(challenge)
    assert found is not None
    assert node.service.on_challenge("evil", found)
    with pytest.raises(Unavailable, match="another resource"):
        await node.service.begin_sign_in("evil", ANA, ANA, ORIGIN)


async def test_the_metadata_of_an_origin_may_speak_for_its_paths(
    hostile: HostilePort, node: AccountNode
) -> None:
    server = hostile["good"]
    document = {**server.resource_document(), "resource": f"{server.origin}/"}
    server.resource = lambda _: json_answer(document)
    node.configure(policy_of(server))
    account = await node.connect("good")
    assert account.resource == f"{server.origin}/"


# Sign-in pages.


@pytest.mark.parametrize(
    "query",
    [
        "client_id=other",
        "redirect_uri=https%3A%2F%2Fevil.example%2F",
        "a=b&state=guess",
        "code_challenge=other&a",
        "a=b;c&resource=https%3A%2F%2Fother.example",
        "scope",
        "response%5Ftype=token",
        "code_challenge_method=plain",
    ],
)
async def test_the_sign_in_page_repeats_no_parameter_of_the_request(
    hostile: HostilePort, node: AccountNode, query: str
) -> None:
    """An issuer that takes the first of two would issue a code for another request."""
    server = hostile["evil"]
    server.issuer_changes = {"authorization_endpoint": f"{server.url}/authorize?{query}"}
    node.configure(policy_of(server))
    with pytest.raises(Unavailable, match="repeats"):
        await node.service.begin_sign_in("evil", ANA, ANA, ORIGIN)


async def test_the_sign_in_page_may_have_parameters_of_its_own(
    hostile: HostilePort, node: AccountNode
) -> None:
    server = hostile["good"]
    server.issuer_changes = {"authorization_endpoint": f"{server.url}/authorize?tenant=a&flag"}
    node.configure(policy_of(server))
    assert await node.connect("good")


# Settings that change while a hostile server answers.


async def test_discovery_for_an_earlier_address_is_not_used_for_the_next(
    hostile: HostilePort, node: AccountNode
) -> None:
    old, new, issuer = hostile["old"], hostile["new"], hostile["issuer"]
    began, may_answer = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    name_issuers(new, issuer)

    def answer(request: HostileRequest) -> HostileAnswer:
        loop.call_soon_threadsafe(began.set)
        assert may_answer.wait(30)
        return json_answer({**old.resource_document(), "authorization_servers": [issuer.url]})

    old.resource = answer
    key = AccountKey("moved", SHARED)
    before, after = (
        replace(
            configured_client(policy_of(each), issuer),
            server="moved",
            mode="shared",
            grant="client_credentials",
        )
        for each in (old, new)
    )
    node.configure(before)
    waiting = asyncio.create_task(node.service.find_challenge("moved"))
    first = asyncio.create_task(node.tokens.token_for(key))
    await began.wait()
    node.configure(after)
    may_answer.set()
    await asyncio.gather(waiting, first)
    await node.tokens.remove(key)
    assert await node.tokens.token_for(key)
    account = node.tokens.find(key)
    assert account is not None
    assert account.resource == f"{new.url}/mcp"
