"""Two nodes with one store: what both are told of at once is taken and answered by one, once."""

import asyncio
from pathlib import Path

import pytest

from comity.adapters.sql import migrating, postgres
from tests.contracts.stores import a_database
from tests.live.channel_scene import PATIENCE, Puppet, message, scene
from tests.live.model_server import serving
from tests.live.test_channels_words import ROW, models
from tests.pace import at_length

MESSAGES = at_length(100, 30)


@pytest.mark.timeout(300)
async def test_what_two_nodes_hear_at_once_is_answered_once(tmp_path: Path) -> None:
    here, there = Puppet("chat"), Puppet("chat")
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    pepper = tmp_path / "pepper"
    pepper.write_text("0123456789abcdef" * 4, "utf-8")
    pepper.chmod(0o600)
    async with a_database() as url, serving() as model:
        fresh = postgres.product(url)
        await migrating.upgrade(fresh.engine)
        await fresh.close()

        def rows(node: str) -> str:
            known = f'[journal]\nnode = "{node}"\n[identity]\npepper_file = "{pepper}"\n'
            return f"{models(model)}{ROW}per_minute = 10000\n{known}"

        async with (
            scene(tmp_path / "here", here, rows=rows("here"), store=url),
            scene(tmp_path / "there", there, rows=rows("there"), store=url),
        ):
            for each in (here, there):
                await each.register("room")
            sent = [message(f"number {number}", id=f"m{number}") for number in range(MESSAGES)]
            # Each message to both nodes, and twice to each, in batches that overlap.
            batches = [sent[start : start + 10] for start in range(0, MESSAGES, 5)]
            accepted: list[str] = []
            for batch in batches:
                tries = (here.hears(*batch), there.hears(*batch), here.hears(*batch))
                for results in await asyncio.gather(*tries):
                    accepted += [each["messageId"] for each in results if each["accepted"]]
            assert sorted(accepted) == sorted(each["messageId"] for each in sent)
            async with asyncio.timeout(PATIENCE * 4):
                while len(_published(here, there)) < MESSAGES:
                    await asyncio.sleep(0.05)
            published = _published(here, there)
            assert len(published) == len(set(published)) == MESSAGES
            assert len(model.requests) == MESSAGES


def _published(*puppets: Puppet) -> list[str]:
    return [each["publishId"] for one in puppets for each in one.said("channels/publish")]
