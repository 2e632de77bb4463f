"""The compliance server of MCPL §15.2 through a whole gateway: nothing secret goes out.

What the model said is in no topic, no answer of the API, no journal and no log but redacted; where
the server cannot look, it depends on what its operator decided.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.live.end_to_end import Stage, models, seat, until

pytestmark = pytest.mark.timeout(300)

SECRET: Final = "sk-1234567890abcdef"
SAID: Final = f"The API key is {SECRET}, and mail goes to ana@example.org."
SHOWN: Final = "The API key is [REDACTED], and mail goes to [REDACTED]."
BREAKS: Final = 'text, found = redact(turn.answer or "")'


@pytest.mark.requirement(
    *("MCPL-10.5-request", "MCPL-10.5-params", "MCPL-10.5-result", "MCPL-13.2-audit"),
    "MCPL-15.2-compliance",
)
async def test_a_secret_of_the_model_is_redacted_wherever_it_goes_and_that_is_journaled(
    tmp_path: Path,
) -> None:
    with models({"text": SAID, "when": "key"}, {"text": "Nothing new.", "when": "new"}) as served:
        stage = Stage.of("compliance_server", tmp_path, served)
        with stage.gateway() as origin:
            async with seat(origin, "desk") as ana:
                await ana.say("What's the API key?")
                assert await until(ana.said) == [SHOWN]
                turn = await stage.turn("And the API key for me?", "api")
                assert (turn["said"], turn["words"]) == (SHOWN, SHOWN)
                assert "compliance" in str(turn["rewrote"])
                assert (await stage.turn("What's new?", "api"))["said"] == "Nothing new."
            rewritten = await until(lambda: stage.journal("dev.comity.response_rewritten"))
            assert len(rewritten) == 2
            assert "compliance.redaction" in str(rewritten[0])
            assert turn["id"] in str(rewritten)
            listed = await stage.api("turns")
            assert SECRET not in str(listed)
            assert SECRET not in str(stage.journal())
        # The model reads its own words as they went out.
        assert not any(SECRET in str(each) for each in served.asked())
        assert SECRET not in stage.said
        assert not [each for each in stored(tmp_path) if SECRET.encode() in each]


@pytest.mark.requirement("MCPL-13.3-failclosed")
async def test_where_it_fails_nothing_goes_out_if_its_operator_said_so(tmp_path: Path) -> None:
    with models({"text": SAID}) as served:
        stage = Stage.of("compliance_server", tmp_path, served)
        stage.rewrite(BREAKS, 'raise RuntimeError("the list of patterns is gone")', "server.py")
        with stage.gateway() as origin:
            async with seat(origin, "desk") as ana:
                await ana.say("What's the API key?")
                await until(ana.said)
                turn = await stage.turn("And for me?", "api")
                assert turn["state"] != "done"
                assert SECRET not in str([ana.said(), turn])
        assert SECRET not in stage.said


@pytest.mark.requirement("MCPL-13.3-failopen")
async def test_where_it_fails_words_go_out_as_they_are_if_its_operator_said_so(
    tmp_path: Path,
) -> None:
    with models({"text": SAID}, {"text": SAID}) as served:
        stage = Stage.of("compliance_server", tmp_path, served)
        stage.rewrite(BREAKS, 'raise RuntimeError("the list of patterns is gone")', "server.py")
        stage.rewrite('on_failure = "closed"', 'on_failure = "open"')
        with stage.gateway():
            turn = await stage.turn("What's the API key?", "api")
            assert turn["state"] == "done"
            assert turn["said"].startswith("The API key is ")


async def test_a_server_that_cannot_be_started_lets_nothing_out_either(tmp_path: Path) -> None:
    with models({"text": SAID}) as served:
        stage = Stage.of("compliance_server", tmp_path, served)
        (tmp_path / "server.py").write_text("raise SystemExit(1)\n", "utf-8")
        with stage.gateway():
            turn = await stage.turn("What's the API key?", "api")
            assert turn["state"] != "done"
            assert SECRET not in str(turn)


def stored(folder: Path) -> list[bytes]:
    """All that the gateway's store has, also what it has let go of."""
    return [each.read_bytes() for each in folder.glob("comity.db*")]
