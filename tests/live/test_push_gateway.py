"""`push/event` and POST /hooks/{name} at a whole gateway: accepted once, bounded."""

import asyncio
import hmac
import json
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from comity.events.webhooks.model import build_signature_headers
from comity.sdk.topics.events import Chat
from comity.sdk.topics.participant import ParticipantOptions, join_topic
from tests.cli.program import Desk
from tests.cluster.nodes import modern
from tests.events.webhook_gateway import Client
from tests.events.webhook_receiver import a_receiver
from tests.interop.peers import ROOT
from tests.interop.processes import Program, answers, operator_headers
from tests.live.model_server import serving
from tests.live.model_speech import Said
from tests.pace import here

COMITY: Final = str(Path(sys.executable).with_name("comity"))
PATIENCE: Final = 60.0
SERVER: Final = f"""
[[servers]]
id = "ci"
command = "{sys.executable}"
args = ["-m", "tests.live.pushing_server"]
env = {{ PYTHONPATH = "{ROOT}" }}
[servers.live]
enabled = ["ci", "ci.*"]
[servers.tools."*"]
risk = "safe"
"""
type Answer = dict[str, Any]


@dataclass
class Pusher:
    """Has the server push, and asks the gateway what came of it."""

    http: aiohttp.ClientSession
    origin: str
    program: Program

    async def push(self, *ids: str, **more: Any) -> list[Answer]:
        """What the host answered to each."""
        return await self._tool("push", {"ids": list(ids), **more})

    async def ask(self, *frames: Answer) -> list[Answer]:
        return await self._tool("ask", {"frames": list(frames)})

    async def results(self, *ids: str, **more: Any) -> list[Answer]:
        return [each["result"] for each in await self.push(*ids, **more)]

    async def listed(self, **query: str) -> Answer:
        async with self.http.get(f"{self.origin}/api/pushes", params=query) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.json()

    async def settled(self, id: str, state: str = "done") -> Answer:
        """The push of this id, once it stands so."""
        found: Answer | None = None
        async with asyncio.timeout(here(PATIENCE)):
            while True:
                for each in (await self.listed())["pushes"]:
                    if each["event"] == id:
                        found = each
                if found is not None and found["state"] == state:
                    return found
                await asyncio.sleep(0.05)

    async def journal(self) -> list[Answer]:
        async with self.http.get(f"{self.origin}/api/audit") as reply:
            assert reply.status == 200, await reply.text()
            return (await reply.json())["entries"]

    async def noted(self, type: str) -> list[Answer]:
        """Entries of this type, once there are some: they are kept a moment after."""
        async with asyncio.timeout(here(PATIENCE)):
            while True:
                entries = await self.journal()
                found = [each for each in entries if each["type"] == f"dev.comity.{type}"]
                if found:
                    return found
                await asyncio.sleep(0.05)

    async def _tool(self, name: str, arguments: Answer) -> list[Answer]:
        params = {"name": f"ci__{name}", "arguments": arguments}
        said = await modern(self.http, self.origin, "tools/call", params)
        assert said.text, said
        return json.loads(said.text)


class House:
    """One configuration, served again and again."""

    def __init__(self, folder: Path, more: str = "", *, is_kept: bool = True) -> None:
        """`more` begins with what stands above all tables."""
        self.folder = folder
        self.config = folder / "comity.toml"
        store = f'[store]\nurl = "sqlite:///{folder / "store.db"}"\n' if is_kept else ""
        self.config.write_text(f"{more}{store}{SERVER}", "utf-8")

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Pusher]:
        environment = {"COMITY_PEPPER": "pepper-" * 8}
        program = Program([COMITY, "serve", "-c", str(self.config), "--port", "0"], environment)
        try:
            found = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
            origin = found.group(1)
            await asyncio.to_thread(program.wait_until, lambda: answers(f"{origin}/ready?strict"))
            timeout = aiohttp.ClientTimeout(here(120))
            shown = operator_headers(origin)
            async with aiohttp.ClientSession(timeout=timeout, headers=shown) as http:
                yield Pusher(http, origin, program)
        finally:
            await asyncio.to_thread(program.stop)
            print(program.said, file=sys.stderr)


pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
ROUTES = """
[policy]
require_approval = "never"
[topics]
access = "public"
[webhooks]
allow_hosts = ["127.0.0.1"]
[limits]
max_push_bytes = 65536
[[pushes]]
from = "ci/ci.builds"
to = "turn"
conversation = "{/thread}"
reply_to = ["topic:ops"]
[[pushes]]
from = "ci/ci"
to = "topic:ops"
[[pushes]]
from = "ci/ci.posts"
to = "webhooks"
[[pushes]]
from = "ci/ci.told"
to = "events"
[[pushes]]
from = "ci/ci.quiet"
to = "nothing"
"""
SETS = ("ci", "ci.builds", "ci.posts", "ci.told", "ci.quiet", "ci.lost", "other")


def model_at(url: str) -> str:
    return f"""
[[models]]
id = "m"
api = "openai"
model = "m"
url = "{url}/v1"
"""


def house(folder: Path, more: str = "", url: str = "") -> House:
    made = House(folder, f"{ROUTES}{model_at(url) if url else ''}{more}")
    sets = ", ".join(
        f'\\"{name}\\": {{\\"description\\": \\"x\\", \\"uses\\": [\\"pushEvents\\"]}}'
        for name in SETS
    )
    hooks = '\\"ci.hooks\\": {\\"description\\": \\"x\\", \\"uses\\": [\\"tools\\"]}'
    text = made.config.read_text("utf-8")
    found = text.replace("env = { ", f'env = {{ PUSHING_SETS = "{{{sets}, {hooks}}}", ')
    made.config.write_text(found, "utf-8")
    return made


@pytest.fixture
async def pusher(tmp_path: Path) -> AsyncGenerator[Pusher]:
    async with house(tmp_path).open() as pusher:
        yield pusher


@pytest.mark.requirement(
    *("MCPL-4.1-push", "MCPL-9.3-accepted", "MCPL-9.3-inferenceId", "MCPL-9.4-dedupe"),
)
async def test_a_push_is_answered_by_a_model_in_a_topic_and_once(tmp_path: Path) -> None:
    async with (
        serving(Said("The build is red.")) as models,
        house(tmp_path, url=models.url).open() as pusher,
        join_topic(pusher.origin, "ops", options=ParticipantOptions(alias="ana")) as me,
    ):
        (first,) = await pusher.results("evt-1", origin={"thread": "t1"})
        assert first["accepted"] is True
        async with asyncio.timeout(here(60)):
            async for event in me:
                if "The build is red." in getattr(event, "text", ""):
                    break
        (again,) = await pusher.results("evt-1", origin={"thread": "t1"})
        assert again["accepted"] is False
        assert again["reason"].startswith("duplicate")
        assert again["inferenceId"] == first["inferenceId"]
        kept = await pusher.settled("evt-1")
        assert (kept["to"], kept["inference"]) == ("turn", first["inferenceId"])
        assert kept["conversation"] == "ci/t1"
        assert len(models.requests) == 1
        assert "said of evt-1" in str(models.requests[0].body)
        await pusher.noted("push_received")
        await pusher.noted("push_completed")
        assert "said of evt-1" not in str(await pusher.journal())


@pytest.mark.requirement("MCPL-9.4-dedupe")
async def test_a_push_counts_once_across_restarts(tmp_path: Path) -> None:
    async with serving(Said("Well.")) as models:
        home = house(tmp_path, url=models.url)
        async with home.open() as pusher:
            (first,) = await pusher.results("evt-1")
            await pusher.settled("evt-1")
        async with home.open() as pusher:
            (again,) = await pusher.results("evt-1")
            assert (again["accepted"], again["inferenceId"]) == (False, first["inferenceId"])
            (other,) = await pusher.results("evt-2")
            assert other["accepted"] is True


async def test_a_push_is_said_in_a_topic_with_its_server_as_the_source(pusher: Pusher) -> None:
    async with join_topic(pusher.origin, "ops", options=ParticipantOptions(alias="ana")) as me:
        heard: list[tuple[str, str]] = []
        all_heard = asyncio.Event()

        async def listen() -> None:
            async for event in me:
                if isinstance(event, Chat):
                    heard.append((event.sender, event.text))
                    if "evt-2" in event.text:
                        all_heard.set()

        listening = asyncio.create_task(listen())
        (said,) = await pusher.results("evt-1", featureSet="ci")
        assert said == {"accepted": True}
        await pusher.results("evt-1", "evt-2", featureSet="ci")
        async with asyncio.timeout(here(60)):
            await all_heard.wait()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        assert heard == [("server:ci", "said of evt-1"), ("server:ci", "said of evt-2")]


@pytest.mark.parametrize("feature", ["ci.posts", "ci.told"])
async def test_a_push_is_posted_to_who_subscribed(pusher: Pusher, feature: str) -> None:
    async with a_receiver() as receiver:
        client = Client(pusher.http, pusher.origin)
        await client.greet()
        assert "result" in await client.subscribe(receiver.url, "push.received")
        ids = [f"evt-{each}" for each in range(5)]
        await pusher.results(*ids, *ids, featureSet=feature)
        await receiver.until(lambda: len(receiver.taken) >= 5, here(60))
        told = [said["data"] for _, said in receiver.taken]
        assert sorted(each["event_id"] for each in told) == ids
        assert told[0]["content"][0]["text"].startswith("said of evt-")
        assert told[0]["server_id"] == "ci"


@pytest.mark.requirement("MCPL-9.3-accepted", "MCPL-9.3-reason")
async def test_what_nobody_routes_is_told_so_and_what_goes_nowhere_is_accepted(
    pusher: Pusher,
) -> None:
    (lost,) = await pusher.results("evt-1", featureSet="ci.lost")
    assert lost["accepted"] is False
    assert lost["reason"].startswith("no route")
    assert await pusher.results("evt-1", featureSet="ci.quiet") == [{"accepted": True}]
    assert [each["event"] for each in (await pusher.listed())["pushes"]] == ["evt-1"]


@pytest.mark.requirement("MCPL-9.3-accepted")
async def test_who_may_not_push_gets_an_error_and_not_an_answer(pusher: Pusher) -> None:
    """D-60"""
    for feature, code in (("other", -32001), ("ci.hooks", -32001), ("unknown", -32003)):
        (answer,) = await pusher.push("evt-1", featureSet=feature)
        assert answer["error"]["code"] == code
    assert (await pusher.listed())["pushes"] == []


@pytest.mark.requirement("MCPL-9.3-reason")
async def test_a_server_that_floods_is_held_back_and_harms_nobody(tmp_path: Path) -> None:
    home = house(tmp_path)
    text = home.config.read_text("utf-8")
    faster = text.replace("max_push_bytes", "push_rate = 20\nmax_push_bytes")
    home.config.write_text(faster, "utf-8")
    async with home.open() as pusher:
        answers: list[Answer] = []
        for some in range(10):
            ids = [f"evt-{some}-{each}" for each in range(40)]
            answers += await pusher.push(*ids, featureSet="ci.quiet")
        accepted = [each for each in answers if each.get("result", {}).get("accepted")]
        reasons = {str(each["result"].get("reason"))[:5] for each in answers if "result" in each}
        assert 20 <= len(accepted) <= 20 + here(60)
        assert reasons == {"None", "rate:"}
        assert len((await pusher.listed())["pushes"]) == len(accepted)
        assert 0 < len(await pusher.noted("push_refused")) < 370


def pushed(**changed: Any) -> Answer:
    params = {
        "featureSet": "ci.quiet",
        "eventId": "evt-1",
        "timestamp": "2026-07-28T12:00:00Z",
        "payload": {"content": [{"type": "text", "text": "x"}]},
        **changed,
    }
    return {"method": "push/event", "params": params}


def raw(grown: int = 0, **changed: Any) -> Answer:
    """As the server writes it, however wrong."""
    written = json.dumps(pushed(**changed)["params"]).replace("\\\\", "\\")
    return {"raw": written, "grown": grown}


@pytest.mark.requirement("MCPL-4.1-push")
async def test_hostile_pushes_are_refused_and_the_next_good_one_is_taken(pusher: Pusher) -> None:
    hostile: tuple[Answer, ...] = (
        pushed(eventId=""),
        pushed(eventId=7),
        pushed(eventId="a\0b"),
        raw(eventId="GROWN", grown=1_000_000),
        raw(eventId="GROWN", grown=3_000_000),
        pushed(timestamp="yesterday"),
        pushed(timestamp="0001-01-01T00:00:00+14:00"),
        pushed(origin=[]),
        pushed(payload={}),
        pushed(payload={"content": {"type": "film"}}),
        pushed(payload={"content": [{"type": "text", "text": "x" * 100_000}]}),
        pushed(payload={"content": [{"type": "text", "text": "x"}] * 1_000}),
        {"method": "push/event", "params": []},
        {"method": "push/event"},
    )
    for frame in hostile:
        (answer,) = await pusher.ask(frame)
        assert "error" in answer, str(frame)[:200]
        assert len(str(answer)) < 2_000
    assert (await pusher.listed())["pushes"] == []
    assert await pusher.ask(pushed()) == [{"result": {"accepted": True}}]


async def test_ten_megabytes_are_not_read_and_the_server_may_go_on(pusher: Pusher) -> None:
    """More than a frame may have."""
    asking = asyncio.create_task(pusher.ask(raw(eventId="GROWN", grown=10_000_000)))
    async with asyncio.timeout(here(90)):
        while True:
            try:
                answer = await pusher.results("evt-2", featureSet="ci.quiet")
                break
            except (AssertionError, KeyError):
                # Where the server was cut off for it, it is started again.
                await asyncio.sleep(0.1)
    assert answer == [{"accepted": True}]
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert [each["event"] for each in (await pusher.listed())["pushes"]] == ["evt-2"]


async def test_without_a_store_a_push_counts_once_while_the_gateway_runs(tmp_path: Path) -> None:
    quiet = '[[pushes]]\nfrom = "*/*"\nto = "nothing"\n'
    async with House(tmp_path, quiet, is_kept=False).open() as pusher:
        answers = await pusher.results("evt-1", "evt-1", "evt-2")
        assert sorted(each["accepted"] for each in answers) == [False, True, True]


SECRET = b"a-secret-of-some-length"
OLDER = b"the-secret-before-this-one"
BODY = {"ref": "refs/heads/main", "repository": {"full_name": "acme/api"}, "id": 7}
KINDS = ("github", "gitlab", "standard", "plain")


def hooks(folder: Path) -> str:
    secret = folder / "secret"
    secret.write_bytes(SECRET + b"\n" + OLDER + b"\n")
    secret.chmod(0o600)
    rows = ["[limits]\nmax_push_bytes = 16384\n"]
    for kind in KINDS:
        more = 'header = "X-Signature"\nid = "/id"\n' if kind == "plain" else ""
        rows.append(
            f'[[inbound_webhooks]]\nname = "{kind}"\n'
            f'kind = "{kind}"\nsecret_file = "{secret}"\n{more}'
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


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wrong_signature_is_refused_without_a_word_of_why(door: Pusher, kind: str) -> None:
    body = json.dumps(BODY).encode()
    wrong = {
        **githubs(body, secret=b"another-secret-than-that"),
        **build_signature_headers([b"another-secret"], "s", "m", datetime.now(UTC), body),
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
    listed = await asyncio.to_thread(desk.run, "pushes", "list", "-o", "json", "--url", door.origin)
    assert [each["event"] for each in listed.json["pushes"]] == ["d-1"]
    assert listed.json["done"] == 1
    other = ("pushes", "list", "--server", "ci", "-o", "json", "--url", door.origin)
    assert (await asyncio.to_thread(desk.run, *other)).json["pushes"] == []
    again = await asyncio.to_thread(desk.run, "pushes", "retry", "1", "--url", door.origin)
    assert again.status != 0


def test_a_secret_that_is_not_there_or_too_short_is_told_before_the_start(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    short = desk.write("short", "abc")
    short.chmod(0o600)
    for path in (tmp_path / "missing", short):
        row = f'name = "x"\nkind = "github"\nsecret_file = "{path}"\nto = "nothing"\n'
        config = desk.write("comity.toml", f"[[inbound_webhooks]]\n{row}")
        ran = desk.run("serve", "-c", str(config), "--port", "0")
        assert ran.status != 0
        assert "secret_file of the inbound webhook 'x'" in ran.err
