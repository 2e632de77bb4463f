"""GitLab's webhook through a whole gateway, two ways: one event, one turn, one answer."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.interop.processes import accepts, free_port
from tests.live.end_to_end import Stage, fetch, models, seat, until, words_in

pytestmark = pytest.mark.timeout(300)

TOKEN: Final = "a-token-that-gitlab-was-given"
ANSWER: Final = "Somebody should look at the login."
PUSHED: Final = json.dumps(
    {
        "object_kind": "push",
        "ref": "refs/heads/main",
        "user_name": "release-bot",
        "project": {"path_with_namespace": "harbour/tides"},
        "total_commits_count": 1,
        "commits": [{"message": "round at midnight"}],
    }
).encode()

type Post = Callable[..., int]


def posting(url: str) -> Post:
    """Posts as GitLab does; gives the status of the answer."""

    def post(key: str = "0af5", token: str = TOKEN, body: bytes = PUSHED) -> int:
        headers = {
            "X-Gitlab-Event": "Push Hook",
            "X-Gitlab-Token": token,
            "Idempotency-Key": key,
            "X-Gitlab-Event-UUID": f"try-of-{key}",
        }
        return fetch(url, body, headers)[0]

    return post


@pytest.mark.requirement("MCPL-9.4-dedupe", "MCPL-9.3-inferenceId")
async def test_gitlab_needs_no_server_and_what_it_posts_five_times_is_answered_once(
    tmp_path: Path,
) -> None:
    with models({"text": ANSWER, "when": "round at midnight"}) as served:
        stage = Stage.of("gitlab_webhook", tmp_path, served)
        (tmp_path / "gitlab.token").write_text(TOKEN + "\n", "utf-8")
        (tmp_path / "gitlab.token").chmod(0o600)
        with stage.gateway() as origin:
            post = posting(f"{origin}/hooks/gitlab")
            async with seat(origin, "builds") as ana:
                for wrong in ("", "a-token-that-others-were-given"):
                    assert await asyncio.to_thread(post, token=wrong) in (401, 403, 404)
                assert served.asked() == []
                tries = await asyncio.gather(*(asyncio.to_thread(post) for _ in range(5)))
                assert all(200 <= status < 300 for status in tries), tries
                assert await until(ana.said) == [ANSWER]
                # Another event of the same project is in the same conversation.
                assert 200 <= await asyncio.to_thread(post, "0af6") < 300
                assert await until(lambda: ana.said()[1:]) == [ANSWER]
                assert 200 <= await asyncio.to_thread(post) < 300
        with stage.gateway() as origin:
            # What it posts again after a restart it has posted before.
            post = posting(f"{origin}/hooks/gitlab")
            assert 200 <= await asyncio.to_thread(post) < 300
            turns = (await stage.api("turns"))["turns"]
        assert len(turns) == 2
        assert len({each["conversation"] for each in turns}) == 1
        assert len(served.asked()) == 2
        assert "round at midnight" in words_in(served.asked()[0])
        assert TOKEN not in stage.said


@pytest.mark.requirement("MCPL-9.1-event", "MCPL-9.2-eventId", "MCPL-9.4-stable")
async def test_a_server_that_hears_gitlab_itself_pushes_each_event_once(tmp_path: Path) -> None:
    port = free_port()
    with models({"text": ANSWER, "when": "round at midnight"}) as served:
        stage = Stage.of(
            "gitlab_webhook", tmp_path, served, GITLAB_TOKEN=TOKEN, GITLAB_PORT=str(port)
        )
        post = posting(f"http://127.0.0.1:{port}/")
        with stage.gateway("server.toml") as origin:
            await until(lambda: accepts(port))
            async with seat(origin, "builds") as ana:
                assert await asyncio.to_thread(post, token="another") == 401
                assert await until(lambda: post() == 200)
                assert [await asyncio.to_thread(post) for _ in range(4)] == [200] * 4
                assert await until(ana.said) == [ANSWER]
            pushed = await until(lambda: stage.journal("dev.comity.push_received"))
            assert len(pushed) == 1
            assert "gitlab.notifications" in str(pushed)
            turns = (await stage.api("turns"))["turns"]
        assert len(turns) == 1
        assert turns[0]["conversation"] == "gitlab/harbour/tides"
        assert TOKEN not in stage.said
