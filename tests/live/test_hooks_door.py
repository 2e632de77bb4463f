"""POST /hooks/{name} at a whole gateway: as GitHub, GitLab and sensors post, and as others try."""

import asyncio
import hmac
import json
import statistics
import time
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from comity.rules.webhooks import heading
from tests.cli.program import Desk
from tests.live.push_scene import House, Pusher
from tests.pace import here

pytestmark = pytest.mark.timeout(600)
SECRET = b"a-secret-of-some-length"
OLDER = b"the-secret-before-this-one"
BODY = {"ref": "refs/heads/main", "repository": {"full_name": "acme/api"}, "id": 7}
KINDS = ("github", "gitlab", "standard", "plain")


def hooks(folder: Path) -> str:
    secret = folder / "secret"
    secret.write_bytes(SECRET + b"\n" + OLDER + b"\n")
    secret.chmod(0o600)
    rows = ["[limits]\npush_bytes = 16384\n"]
    for kind in KINDS:
        more = 'header = "X-Signature"\nid = "/id"\n' if kind == "plain" else ""
        rows.append(
            f'[[hooks]]\nname = "{kind}"\nkind = "{kind}"\nsecret_file = "{secret}"\n{more}'
            f'content = "{{type}} on {{/ref}}"\nto = "nothing"\n'
        )
    return "".join(rows)


@pytest.fixture
async def door(tmp_path: Path) -> AsyncGenerator[Pusher]:
    async with House(tmp_path, hooks(tmp_path)).open() as pusher:
        yield pusher


async def post(
    door: Pusher, name: str, headers: Mapping[str, str], body: bytes = json.dumps(BODY).encode()
) -> tuple[int, dict[str, object]]:
    url = f"{door.origin}/hooks/{name}"
    async with door.http.post(url, data=body, headers=headers) as reply:
        return reply.status, await reply.json()


def githubs(body: bytes, id: str = "d-1", secret: bytes = SECRET) -> dict[str, str]:
    signature = hmac.digest(secret, body, "sha256").hex()
    return {
        "X-GitHub-Delivery": id,
        "X-GitHub-Event": "push",
        "X-Hub-Signature-256": f"sha256={signature}",
        "User-Agent": "GitHub-Hookshot/0000000",
        "Content-Type": "application/json",
    }


async def test_github_is_answered_once_it_is_kept_and_told_of_a_repetition(door: Pusher) -> None:
    body = json.dumps(BODY).encode()
    assert await post(door, "github", githubs(body), body) == (202, {"accepted": True})
    status, again = await post(door, "github", githubs(body), body)
    assert (status, again["reason"]) == (200, "duplicate")
    assert (await post(door, "github", githubs(body, "d-2", OLDER), body))[0] == 202
    first = (await door.listed())["pushes"][-1]
    assert (first["server"], first["event"], first["to"]) == ("hook:github", "d-1", "nothing")
    async with asyncio.timeout(here(60)):
        while True:
            # Entries are kept a moment after what they tell of.
            types = [each["type"] for each in await door.journal()]
            if types.count("dev.comity.push_received") == 2:
                break
            await asyncio.sleep(0.05)


async def test_gitlab_shows_its_token_and_names_its_event(door: Pusher) -> None:
    headers = {
        "X-Gitlab-Event": "Push Hook",
        "X-Gitlab-Token": SECRET.decode(),
        "X-Gitlab-Event-UUID": "13792a34-cac6-4fda-95a8-c58e00a3954e",
        "Content-Type": "application/json",
    }
    assert (await post(door, "gitlab", headers))[0] == 202
    assert (await post(door, "gitlab", headers))[0] == 200
    assert (await post(door, "gitlab", {**headers, "Idempotency-Key": "k-1"}))[0] == 202
    assert (await post(door, "gitlab", {**headers, "X-Gitlab-Token": "guessed"}))[0] == 401
    events = [each["event"] for each in (await door.listed())["pushes"]]
    assert events == ["k-1", "13792a34-cac6-4fda-95a8-c58e00a3954e"]


async def test_a_standard_webhook_is_taken_within_five_minutes(door: Pusher) -> None:
    body, now = json.dumps(BODY).encode(), datetime.now(UTC)
    for id, minutes, status in (("m1", 0, 202), ("m1", 1, 200), ("m2", 6, 401), ("m3", -6, 401)):
        at = now - timedelta(minutes=minutes)
        said = heading([SECRET], "s", id, at, body)
        assert (await post(door, "standard", said, body))[0] == status, id


async def test_a_sensor_signs_its_body_and_its_id_stands_in_it(door: Pusher) -> None:
    body = json.dumps(BODY).encode()
    signature = hmac.digest(SECRET, body, "sha256").hex()
    assert (await post(door, "plain", {"X-Signature": signature}, body))[0] == 202
    assert (await post(door, "plain", {"X-Signature": signature}, body))[0] == 200
    assert (await door.listed())["pushes"][0]["event"] == "7"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wrong_signature_is_refused_without_a_word_of_why(door: Pusher, kind: str) -> None:
    body = json.dumps(BODY).encode()
    wrong = {
        **githubs(body, secret=b"another-secret-than-that"),
        **heading([b"another-secret"], "s", "m", datetime.now(UTC), body),
        "X-Gitlab-Token": "another",
        "X-Signature": "00" * 32,
    }
    answers = [await post(door, kind, said, body) for said in (wrong, {}, {"X-Signature": ""})]
    assert {status for status, _ in answers} == {401}
    assert len({json.dumps(said) for _, said in answers}) == 1
    assert (await door.listed())["pushes"] == []
    refused = await post(door, "github", wrong, body)
    assert refused[0] == 401
    assert await post(door, "nobody", wrong, body) == refused
    assert await post(door, "..%2f..%2fetc", wrong, body) == refused
    assert "secret" not in door.program.said


async def test_two_signatures_are_none(door: Pusher) -> None:
    body = json.dumps(BODY).encode()
    said = githubs(body)
    doubled = [*said.items(), ("X-Hub-Signature-256", "sha256=" + "0" * 64)]
    url = f"{door.origin}/hooks/github"
    async with door.http.post(url, data=body, headers=doubled) as reply:
        assert reply.status == 401


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"not json", 400),
        (b"payload=%7B%7D", 400),
        (b"[" * 200 + b"]" * 200, 400),
        (b'{"a":"' + b"x" * 20_000 + b'"}', 413),
        (b"7", 400),
    ],
)
async def test_a_signed_body_of_another_shape_is_refused(
    door: Pusher, body: bytes, status: int
) -> None:
    assert (await post(door, "github", githubs(body), body))[0] == status
    assert (await door.listed())["pushes"] == []


async def test_only_posts_come_in_and_no_credentials_are_asked_for(door: Pusher) -> None:
    for method in ("GET", "PUT", "DELETE"):
        async with door.http.request(method, f"{door.origin}/hooks/github") as reply:
            assert reply.status == 405
            assert "www-authenticate" not in {name.lower() for name in reply.headers}


async def test_where_identity_is_required_webhooks_still_show_none(tmp_path: Path) -> None:
    required = '[identity]\nmode = "required"\n'
    async with House(tmp_path, required + hooks(tmp_path)).open() as door:
        body = json.dumps(BODY).encode()
        assert (await post(door, "github", githubs(body), body))[0] == 202
        async with door.http.get(f"{door.origin}/api/pushes") as reply:
            assert reply.status == 401


async def test_the_time_of_an_answer_does_not_tell_which_hooks_there_are(door: Pusher) -> None:
    """As far as one process on a busy machine can show that: the medians lie close together."""
    body = b'{"x":"' + b"y" * 8_000 + b'"}'
    times: dict[str, list[float]] = {"github": [], "nobody": []}
    for _ in range(60):
        for name, taken in times.items():
            began = time.perf_counter()
            await post(door, name, githubs(body, secret=b"wrong" * 5), body)
            taken.append(time.perf_counter() - began)
    known, unknown = (statistics.median(each) for each in times.values())
    assert 1 / 5 < known / unknown < 5


async def test_a_flood_of_webhooks_is_held_back(tmp_path: Path) -> None:
    more = hooks(tmp_path).replace("[limits]\n", "[limits]\npush_rate = 5\n")
    async with House(tmp_path, more).open() as door:
        body = json.dumps(BODY).encode()
        tries = (post(door, "github", githubs(body, f"d-{each}"), body) for each in range(40))
        statuses = [status for status, _ in await asyncio.gather(*tries)]
        assert set(statuses) == {202, 429}
        assert statuses.count(202) == len((await door.listed())["pushes"])


async def test_operators_see_what_came_and_what_became_of_it(door: Pusher, tmp_path: Path) -> None:
    body = json.dumps(BODY).encode()
    await post(door, "github", githubs(body), body)
    desk = Desk(tmp_path)
    ran = await asyncio.to_thread(desk.run, "pushes", "--url", door.origin)
    assert ran.status == 0, ran.err
    assert "hook:github" in ran.out
    listed = await asyncio.to_thread(desk.run, "pushes", "list", "--json", "--url", door.origin)
    assert [each["event"] for each in listed.json["pushes"]] == ["d-1"]
    assert listed.json["done"] == 1
    other = ("pushes", "list", "--server", "ci", "--json", "--url", door.origin)
    assert (await asyncio.to_thread(desk.run, *other)).json["pushes"] == []
    again = await asyncio.to_thread(desk.run, "pushes", "retry", "1", "--url", door.origin)
    assert again.status != 0


def test_a_secret_that_is_not_there_or_too_short_is_told_before_the_start(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    short = desk.write("short", "abc")
    short.chmod(0o600)
    for path in (tmp_path / "missing", short):
        row = f'name = "x"\nkind = "github"\nsecret_file = "{path}"\nto = "nothing"\n'
        config = desk.write("comity.toml", f"[[hooks]]\n{row}")
        ran = desk.run("serve", str(config), "--port", "0")
        assert ran.status != 0
        assert "secret_file of hook 'x'" in ran.err
