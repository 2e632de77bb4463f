"""Users and groups that an identity provider writes by SCIM, as Okta and Entra really send it."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from comity.identity.principals import Principal
from comity.identity.scim.service import ScimService
from comity.mcp.actors import PrincipalKind
from comity.mcp.refusals import REFUSAL_KEY
from tests.contracts.stores import a_database
from tests.pace import here
from tests.support.cases import loop_over
from tests.support.principals import INVISIBLE_NAMES
from tests.support.provisioning import (
    AGENT,
    OKTA,
    ROOT,
    Provisioned,
    prepare_store,
    provisioned,
)
from tests.support.upstream import Exchange, scripted
from tests.support.visitor import SECONDS, Reply, at

USER = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP = "urn:ietf:params:scim:schemas:core:2.0:Group"
ENTERPRISE = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"
PATCH = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
ERROR = "urn:ietf:params:scim:api:messages:2.0:Error"

OKTA_USER: dict[str, Any] = {
    "schemas": [USER],
    "userName": "ana@example.org",
    "name": {"givenName": "Ana", "familyName": "Lima"},
    "emails": [{"primary": True, "value": "ana@example.org", "type": "work"}],
    "displayName": "Ana Lima",
    "locale": "en-US",
    "externalId": "00ujl29u0le5T6Aj10h7",
    "groups": [],
    "password": "1mz050nq",
    "active": True,
}
ENTRA_USER: dict[str, Any] = {
    "schemas": [USER, ENTERPRISE],
    "externalId": "0a21f0f2-8d2a-4f8e-bf98-7363c4aed4ef",
    "userName": "bea@example.org",
    "active": True,
    "displayName": "Bea",
    "emails": [{"primary": True, "type": "work", "value": "bea@example.org"}],
    "meta": {"resourceType": "User"},
    "name": {"formatted": "Bea", "familyName": "Sousa", "givenName": "Bea"},
    "roles": [],
    f"{ENTERPRISE}": {"department": "ops"},
}


@pytest.fixture(params=["sqlite", "postgres"])
async def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Provisioned]:
    async def opened(url: str) -> AsyncGenerator[Provisioned]:
        keys = await prepare_store(url, monkeypatch)
        async with provisioned(url) as found:
            found.keys |= keys
            yield found

    if request.param == "sqlite":
        async for found in opened(f"sqlite:///{tmp_path / 'store.db'}"):
            yield found
        return
    async with a_database() as url:
        async for found in opened(url):
            yield found


def patch(*operations: dict[str, Any]) -> dict[str, Any]:
    return {"schemas": [PATCH], "Operations": list(operations)}


async def test_okta_provisions_changes_and_deactivates_a_user(scene: Provisioned) -> None:
    assert await scene.find("Users", 'userName eq "ana@example.org"') == []
    made = await scene.scim("POST", "Users", OKTA_USER, 201)
    assert (made["schemas"], made["userName"]) == ([USER], "ana@example.org")
    assert made["meta"]["location"].endswith(f"/scim/v2/Users/{made['id']}")
    assert "password" not in made
    principal = await scene.principal("person:ana@example.org")
    assert principal is not None
    assert (principal.kind, principal.label) == (PrincipalKind.PERSON, "Ana Lima")
    assert (principal.disabled, principal.created_by) == (False, "scim")
    (found,) = await scene.find("Users", 'userName eq "ANA@example.org"')
    assert found == await scene.scim("GET", f"Users/{made['id']}") == made
    renamed = {**OKTA_USER, "displayName": "Ana L.", "id": made["id"]}
    changed = await scene.scim("PUT", f"Users/{made['id']}", renamed)
    assert changed["displayName"] == "Ana L."
    off = patch({"op": "replace", "value": {"active": False}})
    assert (await scene.scim("PATCH", f"Users/{made['id']}", off))["active"] is False
    principal = await scene.principal("person:ana@example.org")
    assert principal is not None
    assert (principal.disabled, principal.label) == (True, "Ana L.")
    on = patch({"op": "replace", "value": {"active": True}})
    await scene.scim("PATCH", f"Users/{made['id']}", on)
    principal = await scene.principal("person:ana@example.org")
    assert principal is not None
    assert not principal.disabled


async def test_entra_provisions_changes_and_deletes_a_user(scene: Provisioned) -> None:
    (config,) = [await scene.scim("GET", "ServiceProviderConfig")]
    assert config["patch"]["supported"]
    assert await scene.find("Users", f'externalId eq "{ENTRA_USER["externalId"]}"') == []
    made = await scene.scim("POST", "Users", ENTRA_USER, 201)
    operations = patch(
        {"op": "Replace", "path": "displayName", "value": "Beatriz"},
        {"op": "Add", "path": 'emails[type eq "home"].value', "value": "b@home.org"},
        {"op": "Replace", "path": 'emails[type eq "work"].value', "value": "b@example.org"},
        {"op": "Replace", "path": "name.givenName", "value": "Beatriz"},
        {"op": "Add", "path": f"{ENTERPRISE}:department", "value": "sales"},
        {"op": "Replace", "value": {"name.familyName": "S.", "nickName": "b"}},
    )
    changed = await scene.scim("PATCH", f"Users/{made['id']}", operations)
    assert changed["displayName"] == "Beatriz"
    assert changed["name"] == {"formatted": "Bea", "givenName": "Beatriz", "familyName": "S."}
    assert [(each["type"], each["value"]) for each in changed["emails"]] == [
        ("work", "b@example.org"),
        ("home", "b@home.org"),
    ]
    off = patch({"op": "Replace", "path": "active", "value": "False"})
    assert (await scene.scim("PATCH", f"Users/{made['id']}", off))["active"] is False
    principal = await scene.principal("person:bea@example.org")
    assert principal is not None
    assert principal.disabled
    await scene.scim("DELETE", f"Users/{made['id']}", None, 204)
    gone = await scene.scim("GET", f"Users/{made['id']}", None, 404)
    assert (gone["schemas"], gone["status"]) == ([ERROR], "404")
    principal = await scene.principal("person:bea@example.org")
    assert principal is not None
    assert principal.disabled
    # A user that returns is enabled again, under a new id.
    again = await scene.scim("POST", "Users", ENTRA_USER, 201)
    assert again["id"] != made["id"]
    principal = await scene.principal("person:bea@example.org")
    assert principal is not None
    assert not principal.disabled


async def groups_of(scene: Provisioned, principal: str) -> tuple[str, ...]:
    found = await scene.principal(principal)
    assert found is not None
    return found.groups


async def test_groups_come_and_go_as_okta_and_entra_write_them(scene: Provisioned) -> None:
    ana = (await scene.scim("POST", "Users", OKTA_USER, 201))["id"]
    bea = (await scene.scim("POST", "Users", ENTRA_USER, 201))["id"]
    body = {"schemas": [GROUP], "displayName": "sre", "members": [{"value": ana, "display": "x"}]}
    made = await scene.scim("POST", "Groups", body, 201)
    path = f"Groups/{made['id']}"
    assert [each["value"] for each in made["members"]] == [ana]
    assert await groups_of(scene, "person:ana@example.org") == ("sre",)
    # Entra: capitals, and a list even for one.
    add = patch({"op": "Add", "path": "members", "value": [{"value": bea}]})
    await scene.scim("PATCH", path, add, 204)
    assert await groups_of(scene, "person:bea@example.org") == ("sre",)
    shown = await scene.scim("GET", f"Users/{bea}")
    assert [each["display"] for each in shown["groups"]] == ["sre"]
    # Okta removes by a path with a filter, Entra by a list of values.
    gone = patch({"op": "remove", "path": f'members[value eq "{ana}"]'})
    await scene.scim("PATCH", path, gone, 204)
    assert await groups_of(scene, "person:ana@example.org") == ()
    gone = patch({"op": "Remove", "path": "members", "value": [{"value": bea}]})
    await scene.scim("PATCH", path, gone, 204)
    assert await groups_of(scene, "person:bea@example.org") == ()
    # Okta renames with an object without a path.
    both = patch(
        {"op": "replace", "value": {"id": made["id"], "displayName": "ops"}},
        {"op": "replace", "path": "members", "value": [{"value": ana}, {"value": bea}]},
    )
    await scene.scim("PATCH", path, both, 204)
    assert await groups_of(scene, "person:ana@example.org") == ("ops",)
    await scene.scim(
        "PATCH", path, patch({"op": "replace", "path": "displayName", "value": "on call"}), 204
    )
    assert await groups_of(scene, "person:bea@example.org") == ("on call",)
    whole = {"schemas": [GROUP], "displayName": "on call", "members": [{"value": bea}]}
    assert len((await scene.scim("PUT", path, whole))["members"]) == 1
    assert await groups_of(scene, "person:ana@example.org") == ()
    (found,) = await scene.find("Groups", 'displayName eq "ON CALL"')
    assert found["id"] == made["id"]
    bare = await scene.scim("GET", f"{path}?excludedAttributes=members")
    assert "members" not in bare
    await scene.scim("DELETE", path, None, 204)
    assert await groups_of(scene, "person:bea@example.org") == ()
    listed = await scene.send("GET", "/api/groups", None, ROOT)
    assert (await listed.json())["groups"] == []


async def test_a_deleted_user_leaves_its_groups(scene: Provisioned) -> None:
    ana = (await scene.scim("POST", "Users", OKTA_USER, 201))["id"]
    body = {"schemas": [GROUP], "displayName": "sre", "members": [{"value": ana}]}
    group = await scene.scim("POST", "Groups", body, 201)
    await scene.scim("DELETE", f"Users/{ana}", None, 204)
    assert (await scene.scim("GET", f"Groups/{group['id']}"))["members"] == []
    assert await groups_of(scene, "person:ana@example.org") == ()


async def test_a_renamed_user_is_another_principal(scene: Provisioned) -> None:
    ana = (await scene.scim("POST", "Users", OKTA_USER, 201))["id"]
    body = {"schemas": [GROUP], "displayName": "sre", "members": [{"value": ana}]}
    await scene.scim("POST", "Groups", body, 201)
    renamed = {**OKTA_USER, "userName": "ana.lima@example.org"}
    await scene.scim("PUT", f"Users/{ana}", renamed)
    old = await scene.principal("person:ana@example.org")
    new = await scene.principal("person:ana.lima@example.org")
    assert old is not None
    assert new is not None
    assert (old.disabled, old.groups) == (True, ())
    assert (new.disabled, new.groups) == (False, ("sre",))
    # Another case is the same name.
    await scene.scim("PUT", f"Users/{ana}", {**renamed, "userName": "ANA.Lima@example.org"})
    assert await scene.principal("person:ANA.Lima@example.org") is None


async def test_pages_are_stable_and_counted(scene: Provisioned) -> None:
    for number in range(5):
        await scene.scim("POST", "Users", {**OKTA_USER, "userName": f"u{number}"}, 201)
    seen: list[str] = []
    for start in (1, 3, 5, 7):
        page = await scene.scim("GET", f"Users?startIndex={start}&count=2")
        assert (page["totalResults"], page["startIndex"]) == (5, start)
        assert page["itemsPerPage"] == len(page["Resources"])
        seen += [each["userName"] for each in page["Resources"]]
    assert sorted(seen) == [f"u{number}" for number in range(5)]
    none = await scene.scim("GET", "Users?count=0")
    assert (none["totalResults"], none["Resources"]) == (5, [])
    assert (await scene.scim("GET", "Users?startIndex=-3&count=1"))["startIndex"] == 1
    only = await scene.scim("GET", "Users?attributes=userName&count=1")
    assert set(only["Resources"][0]) == {"schemas", "id", "userName"}


async def test_members_that_are_not_asked_for_are_not_read(
    scene: Provisioned, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana = (await scene.scim("POST", "Users", OKTA_USER, 201))["id"]
    body = {"schemas": [GROUP], "displayName": "sre", "members": [{"value": ana}]}
    await scene.scim("POST", "Groups", body, 201)
    for query in (
        "attributes=id,displayName",
        "attributes=displayName",
        "excludedAttributes=members",
        f"excludedAttributes={GROUP}:members",
    ):
        with monkeypatch.context() as patched:
            patched.setattr(ScimService, "members_of", None)
            (found,) = (await scene.scim("GET", f"Groups?{query}"))["Resources"]
        assert "members" not in found
        assert found["displayName"] == "sre"
    for query in ("attributes=members.value", "excludedAttributes=meta", "count=1"):
        (found,) = (await scene.scim("GET", f"Groups?{query}"))["Resources"]
        assert [each["value"] for each in found["members"]] == [ana]


async def test_a_name_that_exists_is_a_conflict(scene: Provisioned) -> None:
    await scene.scim("POST", "Users", OKTA_USER, 201)
    for user_name in ("ana@example.org", "ANA@example.org"):
        told = await scene.scim("POST", "Users", {**OKTA_USER, "userName": user_name}, 409)
        assert (told["schemas"], told["scimType"]) == ([ERROR], "uniqueness")
    await scene.scim("POST", "Groups", {"displayName": "sre"}, 201)
    await scene.scim("POST", "Groups", {"displayName": "SRE"}, 409)


async def test_provisioning_touches_no_principal_of_others(scene: Provisioned) -> None:
    for name in ("root", "local"):
        status = 409 if name == "root" else 400
        await scene.scim("POST", "Users", {**OKTA_USER, "userName": name}, status)
    made = (await scene.scim("POST", "Users", OKTA_USER, 201))["id"]
    await scene.scim("PUT", f"Users/{made}", {**OKTA_USER, "userName": "root"}, 409)
    root = await scene.principal(ROOT)
    assert root == Principal(ROOT, PrincipalKind.PERSON)
    ana = await scene.principal("person:ana@example.org")
    assert ana is not None
    assert not ana.disabled
    # No name leads out of the prefix.
    for name in ("agent:ci", "../agent:ci", "system:gateway", "group:sre"):
        await scene.scim("POST", "Users", {**OKTA_USER, "userName": name}, 201)
        assert await scene.principal(f"person:{name}") is not None
    assert await scene.principal(AGENT) == Principal(AGENT)
    assert await scene.principal("group:sre") is None


async def test_somebody_who_signed_in_before_is_taken_over(scene: Provisioned) -> None:
    parties = scene.visitor.parts.snapshot.records.parties
    signed_in = Principal(
        "person:ana@example.org", PrincipalKind.PERSON, created_by="issuer https://a.org"
    )
    await parties.put(signed_in)
    made = await scene.scim("POST", "Users", OKTA_USER, 201)
    await scene.scim("DELETE", f"Users/{made['id']}", None, 204)
    found = await scene.principal(signed_in.id)
    assert found is not None
    assert found.disabled


async def test_what_an_operator_disabled_stays_disabled(scene: Provisioned) -> None:
    made = (await scene.scim("POST", "Users", OKTA_USER, 201))["id"]
    order = "/api/principals/person:ana@example.org/disable"
    assert (await scene.send("POST", order, {}, ROOT, "application/json")).status == 200
    await scene.scim("PUT", f"Users/{made}", {**OKTA_USER, "displayName": "Ana"})
    await scene.scim(
        "PATCH", f"Users/{made}", patch({"op": "add", "path": "active", "value": True})
    )
    found = await scene.principal("person:ana@example.org")
    assert found is not None
    assert found.disabled


@loop_over(
    "operation",
    [
        {"op": "remove", "path": "active"},
        {"op": "replace", "value": {"displayName": "A"}},
        {"op": "replace", "path": "active", "value": None},
    ],
)
async def test_a_change_that_does_not_say_active_enables_nobody(
    scene: Provisioned, operation: dict[str, Any]
) -> None:
    name = json.dumps(operation).replace(" ", "").replace('"', "")[:40]
    body = {**OKTA_USER, "userName": name, "active": False}
    made = (await scene.scim("POST", "Users", body, 201))["id"]
    changed = await scene.scim("PATCH", f"Users/{made}", patch(operation))
    assert changed["active"] is False
    without = {name: value for name, value in body.items() if name != "active"}
    assert (await scene.scim("PUT", f"Users/{made}", without))["active"] is False


MALFORMED_USERS: list[Any] = [
    {},
    [],
    "text",
    {**OKTA_USER, "userName": ""},
    {**OKTA_USER, "userName": 7},
    {**OKTA_USER, "userName": "a b"},
    {**OKTA_USER, "userName": "*"},
    {**OKTA_USER, "userName": "a\nb"},
    {**OKTA_USER, "userName": "u" * 201},
    *({**OKTA_USER, "userName": name} for name in INVISIBLE_NAMES),
    {**OKTA_USER, "active": "perhaps"},
    {**OKTA_USER, "active": 1},
    {**OKTA_USER, "emails": "x"},
    {**OKTA_USER, "emails": ["x"]},
    {**OKTA_USER, "emails": [{"value": 7}]},
    {**OKTA_USER, "emails": [{}] * 21},
    {**OKTA_USER, "displayName": {"a": 1}},
    {**OKTA_USER, "displayName": "x" * 501},
    {**OKTA_USER, "name": {"givenName": ["x"]}},
    {**OKTA_USER, "externalId": 7},
]
MALFORMED_PATCHES: list[Any] = [
    {},
    {"Operations": {}},
    {"Operations": [7]},
    patch({"op": "copy", "path": "active"}),
    patch({"op": "remove"}),
    patch({"op": 7}),
    patch({"op": "replace", "path": 7}),
    patch({"op": "replace", "value": "x"}),
    patch({"op": "replace", "path": "userName", "value": None}),
    patch({"op": "remove", "path": "userName"}),
    patch({"op": "replace", "path": "name", "value": "x"}, {"op": "add", "path": "name.givenName"}),
    patch({"op": "add", "path": "emails", "value": ["x"]}),
    patch({"op": "add", "path": "emails[type eq", "value": "x"}),
    patch({"op": "replace", "path": "active", "value": {"a": 1}}),
    patch(*({"op": "add", "path": "displayName", "value": "x"},) * 1001),
]


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
async def test_a_malformed_message_is_refused_in_the_form_of_scim(scene: Provisioned) -> None:
    made = (await scene.scim("POST", "Users", OKTA_USER, 201))["id"]
    for body in MALFORMED_USERS:
        for method, path in (("POST", "Users"), ("PUT", f"Users/{made}")):
            told = await scene.scim(method, path, body, 400)
            assert (told["schemas"], told["status"]) == ([ERROR], "400"), body
    for body in MALFORMED_PATCHES:
        told = await scene.scim("PATCH", f"Users/{made}", body, 400)
        assert told["schemas"] == [ERROR], body
    for body in (
        {"displayName": ""},
        {"displayName": " x"},
        {"displayName": "*"},
        {"displayName": "adm*"},
        *({"displayName": name} for name in INVISIBLE_NAMES),
        {"displayName": 7},
        {"displayName": "g", "members": [{"value": "none"}]},
        {"displayName": "g", "members": [{"value": "../x"}]},
        {"displayName": "g", "members": ["x"]},
        {"displayName": "g", "members": "x"},
    ):
        await scene.scim("POST", "Groups", body, 400)
    for written in (
        "userName",
        'userName co "a"',
        'password eq "x"',
        'a eq "b" and c eq "d"',
        "x" * 2000,
    ):
        told = await scene.scim("GET", f"Users?filter={written.replace(' ', '%20')}", None, 400)
        assert told["scimType"] == "invalidFilter"
    await scene.scim("GET", "Users?count=many", None, 400)
    await scene.scim("GET", "Nothing", None, 404)
    await scene.scim("GET", "Schemas/none", None, 404)
    assert (await scene.send("POST", f"/scim/v2/Users/{made}", {})).status == 405
    assert (await scene.send("POST", "/scim/v2/Schemas", {})).status == 405
    text = await scene.send("POST", "/scim/v2/Users", OKTA_USER, kind="text/plain")
    assert text.status == 415
    raw = b'{"userName": "a", "userName": "b"}'
    headers = {
        "content-type": "application/scim+json",
        "authorization": f"Bearer {scene.keys[OKTA]}",
    }
    twice = await scene.visitor.send("POST", headers.items(), raw, "/scim/v2/Users")
    assert twice.status == 400
    long = await scene.visitor.send(
        "POST", {**headers, "content-length": "9999999"}.items(), b"{}", "/scim/v2/Users"
    )
    assert long.status == 413


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
async def test_only_a_principal_with_the_grant_provisions(scene: Provisioned) -> None:
    told = await scene.scim("GET", "Users", None, 401, who="")
    assert (told["schemas"], told["status"]) == ([ERROR], "401")
    for method, path in (("GET", "Users"), ("POST", "Users"), ("GET", "ServiceProviderConfig")):
        told = await scene.scim(method, path, OKTA_USER, 403, who=AGENT)
        assert "scim/write" in told["detail"]
    assert (await scene.scim("GET", "Users", who=ROOT))["totalResults"] == 0
    # The grant of provisioning opens nothing else.
    assert (await scene.send("GET", "/api/keys", who=OKTA)).status == 403
    # A page of another site can change nothing, whatever credentials the browser adds.
    reply = await scene.send("POST", "/scim/v2/Users", OKTA_USER, origin="https://evil.org")
    assert reply.status == 403
    ours = {"sec-fetch-site": "cross-site"}
    assert (await scene.send("POST", "/scim/v2/Users", OKTA_USER, **ours)).status == 403


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
async def test_every_change_is_in_the_audit_log(scene: Provisioned) -> None:
    made = (await scene.scim("POST", "Users", OKTA_USER, 201))["id"]
    await scene.scim("POST", "Groups", {"displayName": "sre", "members": [{"value": made}]}, 201)
    await scene.scim("DELETE", f"Users/{made}", None, 204)

    async def changes() -> list[tuple[str, str]]:
        reply = await scene.send("GET", "/api/audit?limit=50", None, ROOT)
        entries = (await reply.json())["entries"]
        return [
            (each["actor"], each["details"]["change"])
            for each in entries
            if "change" in each.get("details", {})
        ]

    expected = [(OKTA, "provisioned"), (OKTA, "created"), (OKTA, "deprovisioned")]
    async with asyncio.timeout(60):
        while sorted(await changes()) != sorted(expected):
            await asyncio.sleep(0.02)


async def test_a_leaver_loses_everything_at_both_gateways_of_one_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_database() as url, scripted() as server:

        @server.act("tools/list")
        async def tools(exchange: Exchange) -> None:
            await exchange.result({"tools": [{"name": "look", "inputSchema": {"type": "object"}}]})

        keys = await prepare_store(url, monkeypatch)
        async with (
            provisioned(url, at(server.url), policy_require_approval="never") as one,
            provisioned(url, at(server.url), policy_require_approval="never") as other,
        ):
            one.keys |= keys
            made = (await one.scim("POST", "Users", OKTA_USER, 201))["id"]
            body = {"displayName": "sre", "members": [{"value": made}]}
            group = (await one.scim("POST", "Groups", body, 201))["id"]
            key = await one.key_of("person:ana@example.org")
            streams = [await _listens(each, key) for each in (one, other)]
            assert [await _call(each, key) for each in (one, other)] == ["ok", "ok"]
            # Who leaves the group loses what it allows, and the streams that it decided about.
            gone = patch({"op": "Remove", "path": "members", "value": [{"value": made}]})
            await one.scim("PATCH", f"Groups/{group}", gone, 204)
            await _all_end(streams)
            assert [await _call(each, key) for each in (one, other)] == ["access_denied"] * 2
            back = patch({"op": "Add", "path": "members", "value": [{"value": made}]})
            await one.scim("PATCH", f"Groups/{group}", back, 204)
            async with asyncio.timeout(SECONDS):
                while await _call(other, key) != "ok":
                    await asyncio.sleep(0.02)
            streams = [await _listens(each, key) for each in (one, other)]
            off = patch({"op": "Replace", "path": "active", "value": "False"})
            await one.scim("PATCH", f"Users/{made}", off)
            await _all_end(streams)
            assert [await _call(each, key) for each in (one, other)] == ["unauthenticated"] * 2


async def _all_end(streams: list[Reply]) -> None:
    """A second is promised. A busy machine has longer here, but not much."""
    began = time.monotonic()
    for stream in streams:
        await stream.events()
    assert time.monotonic() - began < here(1.0) + 1.0


async def _listens(gateway: Provisioned, key: str) -> Reply:
    """The stream of a session, opened with a key as soon as the gateway knows it."""
    ana = gateway.visitor.other("/mcp")
    shown = {"authorization": f"Bearer {key}"}
    async with asyncio.timeout(60):
        while (await ana.send("GET", shown.items(), path="/api/approvals")).status == 401:
            await asyncio.sleep(0.05)
    ana.session = dict(shown)
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x"}}
    reply = await ana.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
    ana.session |= {"mcp-session-id": reply.headers["mcp-session-id"]}
    stream = await ana.get()
    assert stream.is_stream
    return stream


async def _call(gateway: Provisioned, key: str) -> str:
    """What becomes of a call: `ok`, or the type of the refusal."""
    caller = gateway.visitor.other("/mcp")
    reply = await caller.call_modern("up__look", authorization=f"Bearer {key}")
    (answer,) = await reply.frames()
    if "error" in answer:
        return answer["error"]["data"]["error_type"]
    refusal = answer["result"].get("_meta", {}).get(REFUSAL_KEY)
    return "ok" if refusal is None else refusal["error_type"]
