"""Hostile registrations: tricks with words, paths, names and time, and what each is answered.

A server that somebody brings is code that somebody runs; the numbers are those of the threat model.
"""

import asyncio
import os
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comity.identity.principals import Principal
from comity.mcp.actors import ADMIN_WRITE, Actor, PrincipalKind
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import ADMIN, refusal_of
from tests.conformance.newcomer_scene import (
    AGENT,
    CODE,
    DEREGISTER,
    MINE,
    OTHER,
    PERSON,
    REGISTER,
    SPOKEN,
    STATS,
    alone,
    answers,
    approve,
    greeted,
    is_there,
    may_call,
    open_ask,
    scene_of,
)
from tests.support.upstream import scripted
from tests.support.visitor import SECONDS, request, visiting

SOON = timedelta(milliseconds=100)
ITS = Grant(OTHER, ADMIN_WRITE, "dynamic.mine/*", Effect.ALLOW)


async def test_attack_12_no_word_smuggles_another_command(tmp_path: Path) -> None:
    tricks: list[dict[str, Any]] = [
        {"command": "python -c 'import os'"},
        {"command": "python;id"},
        {"command": "sh", "args": ["-c", "id"]},
        {"command": "$(id)"},
        {"command": "/usr/bin/python"},
        {"command": "./python"},
        {"command": "PYTHON"},
        {"command": sys.executable},
        {"args": ["-c", "print(1)"]},
        {"args": ["-m", "http.server"]},
        {"args": ["stats.py", "--more"]},
        {"args": ["stats.py; id"]},
        {"args": ["`id`.py"]},
        {"args": ["stats.py\0"]},
        {"args": ["stats.py\n"]},
        {"args": []},
    ]
    async with scene_of(tmp_path) as (scene, admin):
        found = await answers(admin, *tricks)
        assert found == ["access_denied"] * len(tricks)
        assert not is_there(scene)


async def test_attack_11_no_path_leads_out_of_the_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "stats.py").write_text(CODE)
    (inside / "link.py").symlink_to(outside / "stats.py")
    (inside / "away").symlink_to(outside)
    (inside / "loop.py").symlink_to(inside / "loop.py")
    (inside / "folder.py").mkdir()
    os.mkfifo(inside / "pipe.py")
    (inside / "huge.py").write_text("#" * 40_000)
    (inside / "odd.py").write_bytes(b"\xff\xfe")
    paths = [
        *("../outside/stats.py", "inside/../../outside/stats.py", str(outside / "stats.py")),
        *("link.py", "away/stats.py", "loop.py", "folder.py", "pipe.py", "huge.py", "odd.py"),
        *("/proc/self/environ.py", "./../outside/stats.py", "nothing.py", "~/stats.py"),
    ]
    async with scene_of(inside) as (scene, admin):
        found = await answers(admin, *({"args": [path]} for path in paths))
        assert found == ["access_denied"] * len(paths)
        assert not is_there(scene)


async def test_attack_03_no_id_imitates_another(tmp_path: Path) -> None:
    ids = [
        *("files", "FILES", "web", "dynamic.files/read", "dynamic", "system.gateway", "mgp.tools"),
        *("dynamic.Stats", "dynamic.st\u0430ts", "dynamic.stats\u200b", "dynamic.5tats"),
        *("dynamic.sta_ts_", "dynamic.a__b", "dynamic.*", "dynamic. stats", "\uff44ynamic.x"),
    ]
    async with scene_of(tmp_path) as (scene, admin):
        assert "result" in await admin.ask(REGISTER, STATS)
        before = set(scene.visitor.parts.servers.names())
        found = await answers(admin, *({"id": id} for id in (*ids, "dynamic.stats")))
        assert found == ["invalid_params"] * (len(ids) + 1)
        assert set(scene.visitor.parts.servers.names()) == before


async def test_attack_02_a_name_that_was_let_go_is_not_inherited(tmp_path: Path) -> None:
    wish = {**STATS, "id": "dynamic.mine"}
    async with scene_of(tmp_path, more_grants=[MINE, ITS]) as (scene, admin):
        agent, other = await greeted(scene, AGENT), await greeted(scene, OTHER)
        assert "result" in await agent.ask(REGISTER, wish)
        await scene.grant(may_call("agent:third", "dynamic.mine"))
        assert "result" in await agent.ask(DEREGISTER, {"id": "dynamic.mine"})
        assert refusal_of(await other.ask(REGISTER, wish)) == "invalid_params"
        assert "result" in await agent.ask(REGISTER, wish)
        # Who administers it frees the name by taking it away.
        assert "result" in await admin.ask(DEREGISTER, {"id": "dynamic.mine"})
        assert "result" in await other.ask(REGISTER, wish)


async def test_attack_18_what_is_too_much_is_refused_at_once(tmp_path: Path) -> None:
    huge: list[dict[str, Any]] = [
        {"args": ["x" * 3000]},
        {"args": ["x"] * 100},
        {"args": ["x" * 2000] * 20},
        {"command": "x" * 1000},
        {"id": "dynamic." + "x" * 100},
        {"justification": "x" * 5000},
        {"mgp": {"permissions_required": ["x"] * 100}},
        {"mgp": {"deep": {"er": {}}}},
    ]
    async with scene_of(tmp_path) as (_, admin):
        assert await answers(admin, *huge) == ["invalid_params"] * len(huge)


async def test_attack_18_nobody_fills_the_house(tmp_path: Path) -> None:
    async with scene_of(
        tmp_path,
        more_grants=[MINE],
        registration_max_servers=2,
        registration_max_servers_per_principal=1,
    ) as (scene, admin):
        agent = await greeted(scene, AGENT)
        assert await answers(agent, {"id": "dynamic.one"}, {"id": "dynamic.two"}) == [
            None,
            "quota_exceeded",
        ]
        assert await answers(admin, {"id": "dynamic.two"}) == [None]
        assert await answers(admin, {"id": "dynamic.three"}) == ["quota_exceeded"]


async def test_attack_09_no_url_leads_inside(tmp_path: Path) -> None:
    urls = [
        *("http://127.0.0.1:1/mcp", "http://localhost/", "http://[::1]/", "http://0x7f.1/"),
        *("http://169.254.169.254/latest", "http://10.0.0.1/", "http://metadata/", "file:///etc"),
        *("https://user:word@example.org/", "https://127.0.0.1.nip.io/", "http://2130706433/"),
    ]
    async with scene_of(tmp_path) as (_, admin):
        for url in urls:
            wish = {"id": "dynamic.remote", "transport": "http", "url": url}
            assert refusal_of(await admin.ask(REGISTER, wish)) == "access_denied", url


async def test_attack_09_a_name_that_turns_inside_is_not_dialled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer is public, as when it was registered; every later one is not."""
    async with scripted() as inside, scene_of(tmp_path) as (scene, admin):
        asked: list[str] = []

        async def resolve(name: str) -> tuple[str, ...]:
            asked.append(name)
            return ("93.184.216.34",) if len(asked) == 1 else ("127.0.0.1",)

        monkeypatch.setattr(scene.visitor.parts.validation_components.resolver, "resolve", resolve)
        url = inside.url.replace("127.0.0.1", "turning.example.org")
        assert url != inside.url
        wish = {"id": "dynamic.remote", "transport": "http", "url": url}
        failed = await admin.ask(REGISTER, wish)
        assert refusal_of(failed) == "upstream_failed"
        assert "not public" in failed["error"]["message"]
        assert inside.heard == []
        assert len(asked) > 1
        assert not is_there(scene, "dynamic.remote")


async def test_attack_21_an_approval_is_good_for_one_start(tmp_path: Path) -> None:
    async with scene_of(tmp_path, approvals_client_wait=SOON) as (scene, _):
        agent = await greeted(scene, AGENT)
        assert await answers(agent, {}) == ["pending_approval"]
        await approve(scene)
        replays = await asyncio.gather(*(alone(scene, AGENT, STATS) for _ in range(4)))
        assert sorted(map(str, replays)).count("None") == 1
        assert {each for each in replays if each} <= {"pending_approval", "invalid_params"}
        assert "result" in await agent.ask(DEREGISTER, {"id": "dynamic.stats"})
        assert await answers(agent, {}) == ["pending_approval"]


async def test_attack_21_what_was_approved_is_what_runs(tmp_path: Path) -> None:
    """The script is another between the approval and the request that uses it."""
    async with scene_of(tmp_path, approvals_client_wait=SOON) as (scene, _):
        agent = await greeted(scene, AGENT)
        assert await answers(agent, {}) == ["pending_approval"]
        await approve(scene)
        (tmp_path / "stats.py").write_text(CODE.replace("sum", "max"))
        assert await answers(agent, {}) == ["pending_approval"]
        assert not is_there(scene)


async def test_two_registrations_of_one_id_at_once_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them were looked at, and found in order, before the first of them starts."""
    everybody = Grant(OTHER, "*", "*", Effect.ALLOW)
    async with scene_of(tmp_path, more_grants=[MINE, everybody]) as (scene, _):
        parties = [ADMIN, AGENT, OTHER, AGENT]
        together = asyncio.Barrier(len(parties))

        async def violations(code: str, policy: object) -> tuple[str, ...]:
            await together.wait()
            return ()

        monkeypatch.setattr(
            scene.visitor.parts.validation_components.examiner, "violations", violations
        )
        async with asyncio.timeout(SECONDS):
            found = await asyncio.gather(*(alone(scene, party, STATS) for party in parties))
        assert found.count(None) == 1
        assert found.count("invalid_params") == len(parties) - 1


async def test_attack_25_a_server_registers_nothing(tmp_path: Path) -> None:
    party = "server:files"
    grant = Grant(party, "*", "*", Effect.ALLOW)
    async with scene_of(tmp_path, more_grants=[grant]) as (scene, admin):
        scene.given_out.parties[party] = Principal(party, PrincipalKind.SERVER)
        server = await greeted(scene, party)
        assert await answers(server, {}) == ["access_denied"]
        assert "result" in await admin.ask(REGISTER, STATS)
        assert refusal_of(await server.ask(DEREGISTER, {"id": "dynamic.stats"})) == "invalid_params"
        assert is_there(scene)


async def test_attack_21_a_grant_that_is_revoked_before_the_start_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is revoked while what is about to be done is written down: the last wait before it."""
    async with scene_of(tmp_path) as (scene, _):
        await scene.grant(MINE)
        journal = scene.visitor.parts.audit_log_components.audit_log
        insist = journal.insist

        def and_then(event: Any) -> Any:
            async def revoke() -> None:
                await insist(event)
                await scene.visitor.parts.snapshot.records.grants.revoke(AGENT, ADMIN_WRITE, "*")
                await scene.visitor.parts.snapshot.refresh()

            return asyncio.ensure_future(revoke())

        monkeypatch.setattr(journal, "insist", and_then)
        agent = await greeted(scene, AGENT)
        assert await answers(agent, {}) == ["access_denied"]
        assert not is_there(scene)


async def test_attack_21_what_is_forbidden_after_the_approval_does_not_start(
    tmp_path: Path,
) -> None:
    async with scene_of(tmp_path, approvals_client_wait=SOON) as (scene, _):
        agent = await greeted(scene, AGENT)
        assert await answers(agent, {}) == ["pending_approval"]
        await approve(scene)
        await scene.grant(Grant(AGENT, ADMIN_WRITE, "dynamic.stats/*", Effect.DENY))
        assert await answers(agent, {}) == ["access_denied"]
        assert not is_there(scene)


async def test_attack_22_who_may_answer_asks_but_not_administer_lets_no_server_in(
    tmp_path: Path,
) -> None:
    clerk = Actor("person:clerk", PrincipalKind.PERSON)
    grants = [Grant(clerk.party, "approval/answer", "*", Effect.ALLOW)]
    async with scene_of(tmp_path, more_grants=grants, approvals_client_wait=SOON) as (scene, _):
        assert await answers(await greeted(scene, AGENT), {}) == ["pending_approval"]
        ask = await open_ask(scene)
        approvals = scene.visitor.parts.approval_components.approvals
        assert "admin/write" in (approvals.refusal_reason(ask, clerk) or "")
        assert approvals.refusal_reason(ask, PERSON) is None


async def test_nobody_takes_away_what_is_anothers(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as (scene, admin):
        assert "result" in await admin.ask(REGISTER, STATS)
        other = await greeted(scene, OTHER)
        theirs = await other.ask(DEREGISTER, {"id": "dynamic.stats"})
        unknown = await other.ask(DEREGISTER, {"id": "dynamic.nothing"})
        assert theirs["error"]["message"] == unknown["error"]["message"]
        assert is_there(scene)


async def test_attack_25_from_the_network_nothing_is_registered_unless_switched_on(
    tmp_path: Path,
) -> None:
    async with scene_of(tmp_path, registration_from_network=False) as (scene, admin):
        assert await answers(admin, {}) == ["access_denied"]
        assert not is_there(scene)


async def test_attack_25_this_machine_registers_only_what_its_file_names(tmp_path: Path) -> None:
    """Without a word in [registration] nothing runs, not even for whoever runs the gateway.

    With one, the operator registers a program, and any other process of this machine asks for it.
    """
    (tmp_path / "stats.py").write_text(CODE)
    named: dict[str, Any] = {
        "registration_commands": ("python",),
        "registration_folders": (str(tmp_path),),
    }
    cases: list[tuple[dict[str, Any], str | None]] = [({}, "access_denied"), (named, None)]
    for chosen, refusal in cases:
        async with visiting(**chosen) as visitor:
            for is_operator, expected in ((False, refusal or "pending_approval"), (True, refusal)):
                local = replace(visitor.other("/mcp"), is_operator=is_operator)
                await local.greet(capabilities=SPOKEN)
                frame = (await (await local.post(request(7, REGISTER, STATS))).frames())[-1]
                assert refusal_of(frame) == expected
