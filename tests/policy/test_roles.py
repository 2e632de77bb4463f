"""Roles of the settings file: what each may do at the routes of a real gateway."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from comity.errors import Misconfigured
from comity.http.api import Permission
from comity.identity.principals import Principal
from comity.mcp.actors import CALL, Actor, PrincipalKind
from comity.policy.grants import Effect, GrantSet, StaticRules, role_grants
from comity.policy.wiring import static_rules_of
from tests.support.cases import loop_over
from tests.support.credentials import GivenOut, bearer
from tests.support.settings import settings_with
from tests.support.visitor import Visitor, visiting
from tests.support.writing import from_text

ROLES = {
    "viewer": ("group:staff", "person:vic@example.org"),
    "approver": ("group:sre",),
    "admin": ("group:root",),
}
GROUP_BY_ROLE = {"viewer": "staff", "approver": "sre", "admin": "root", "nobody": "qa"}


@asynccontextmanager
async def gateway() -> AsyncGenerator[tuple[Visitor, dict[str, str]]]:
    """A gateway with the roles, and a key of a member of each group."""
    given_out, keys = GivenOut(), dict[str, str]()
    for role, group in GROUP_BY_ROLE.items():
        principal = f"person:{role}"
        keys[role] = given_out.give(principal)
        given_out.parties[principal] = Principal(principal, PrincipalKind.PERSON, groups=(group,))
    async with visiting(
        register=given_out.register, identity_mode="required", identity_roles=ROLES
    ) as visitor:
        yield visitor, keys


async def status(visitor: Visitor, key: str, method: str, path: str) -> int:
    headers = {**bearer(key), "content-type": "application/json"}
    body = b"" if method == "GET" else json.dumps({"no such member": 1}).encode()
    return (await visitor.send(method, headers.items(), body, path)).status


async def test_every_route_of_the_api_asks_for_what_the_roles_have() -> None:
    expected = {
        (Permission.ADMIN_READ, "viewer"): True,
        (Permission.ADMIN_READ, "approver"): True,
        (Permission.ADMIN_READ, "admin"): True,
        (Permission.ADMIN_WRITE, "admin"): True,
    }
    async with gateway() as (visitor, keys):
        routes = [each for each in visitor.parts.api.routes if "{" not in each.path]
        assert {each.permission for each in routes} >= {
            Permission.ADMIN_READ,
            Permission.ADMIN_WRITE,
        }
        for route in routes:
            if route.permission not in (Permission.ADMIN_READ, Permission.ADMIN_WRITE):
                continue
            for role, key in keys.items():
                found = await status(visitor, key, route.method, route.path)
                is_allowed = (route.permission, role) in expected
                assert (found != 403) is is_allowed, (route, role, found)


@loop_over(
    ("role", "verb", "effect"),
    [
        ("viewer", "admin/read", Effect.ALLOW),
        ("viewer", "admin/write", Effect.DENY),
        ("viewer", "approval/answer", Effect.DENY),
        ("approver", "admin/read", Effect.ALLOW),
        ("approver", "approval/answer", Effect.ALLOW),
        ("approver", "admin/write", Effect.DENY),
        ("approver", "scim/write", Effect.DENY),
        ("admin", "admin/write", Effect.ALLOW),
        ("admin", "approval/answer", Effect.ALLOW),
        ("admin", "scim/write", Effect.ALLOW),
        ("admin", "topic/send", Effect.ALLOW),
        ("admin", "events/subscribe", Effect.ALLOW),
        ("admin", "feature/enable", Effect.ALLOW),
        ("admin", CALL, Effect.DENY),
        ("nobody", "admin/read", Effect.DENY),
    ],
)
def test_a_role_is_some_grants_on_everything(role: str, verb: str, effect: Effect) -> None:
    actor = Actor("person:x", groups=(GROUP_BY_ROLE[role],))
    access = GrantSet.from_grants((), StaticRules(role_grants(ROLES)))
    decision = access.authorize(actor, verb, "files", "read", datetime.now(UTC))
    assert decision.effect is effect
    if effect is Effect.ALLOW:
        assert decision.grant is not None
        assert decision.grant.justification == f"role {role}"


async def test_the_explanation_names_the_role() -> None:
    async with gateway() as (visitor, keys):
        asked = "/api/grants/explain?principal=person:vic@example.org&verb=admin/read&tool=*"
        reply = await visitor.send("GET", bearer(keys["admin"]).items(), path=asked)
        assert "role viewer" in (await reply.json())["sentence"]


def test_the_roles_are_read_from_the_settings_file(tmp_path: Path) -> None:
    text = '[identity.roles]\nviewer = ["group:all staff"]\nadmin = ["person:ana@example.org"]\n'
    settings = from_text(tmp_path, text)
    grants = static_rules_of(settings).grants
    assert ("group:all staff", "admin/read", "*") in [
        (each.subject, each.verb, each.target) for each in grants
    ]
    assert any(
        each.subject == "person:ana@example.org" and each.verb == "admin/*" for each in grants
    )


@loop_over(
    ("text", "told"),
    [
        ('owner = ["group:sre"]', "owner"),
        ('admin = "group:sre"', "list"),
        ('admin = ["*"]', "not possible"),
        ('admin = ["group:*"]', "not possible"),
        ('admin = [""]', "not possible"),
        ('admin = ["group:sre "]', "not possible"),
        ("admin = [7]", "must be a text"),
    ],
)
def test_a_mistake_about_a_role_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, f"[identity.roles]\n{text}\n")


async def test_a_reload_changes_the_roles() -> None:
    async with gateway() as (visitor, keys):
        assert await status(visitor, keys["viewer"], "GET", "/api/keys") == 200
        await visitor.parts.policy_components.apply_settings(
            settings_with(identity_mode="required", identity_roles={"viewer": ("group:qa",)})
        )
        assert await status(visitor, keys["viewer"], "GET", "/api/keys") == 403
        assert await status(visitor, keys["nobody"], "GET", "/api/keys") == 200
