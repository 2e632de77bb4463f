"""The memory server of MCPL §15.1 through a whole gateway: what was said is there when it is asked.

A gateway that is `comity serve`, the example as it stands, a model on loopback, people in a topic.
"""

from pathlib import Path

import pytest

from tests.live.end_to_end import Stage, models, seat, until, words_in

pytestmark = pytest.mark.timeout(300)

STATED = "The greenhouse extension grows to 8-10 beds."
ASKED = "How's the greenhouse project?"


@pytest.mark.requirement("MCPL-10.1-before", "MCPL-10.2-result", "MCPL-10.5-notification")
@pytest.mark.requirement("MCPL-15.1-memory")
async def test_what_was_said_stands_in_a_prompt_after_all_has_been_restarted(
    tmp_path: Path,
) -> None:
    script = ({"text": "Well.", "when": "project"}, {"text": "I see.", "when": "grows"})
    with models(*script) as served:
        stage = Stage.of("memory_server", tmp_path, served)
        with stage.gateway() as origin:
            async with seat(origin, "home") as ana:
                await ana.say(STATED)
                assert await until(ana.said) == ["I see."]
            await until(lambda: remembered(tmp_path))
        (first,) = served.asked()
        assert "<memories>" not in words_in(first)
        # Another process of everything, and another conversation: only the server knows.
        with stage.gateway():
            turn = await stage.turn(ASKED, "another")
            assert (turn["said"], turn["state"]) == ("Well.", "done")
            # Which set of which server had a part in it is told to whoever looks at the turn.
            assert "memory" in str(turn["injected"])
            before = await until(lambda: stage.journal("dev.comity.hook_asked"))
        prompt = words_in(served.asked()[-1])
        assert STATED in prompt
        assert ASKED in prompt
        hooked = [each for each in before if "beforeInference" in str(each)]
        assert any("memory.retrieval" in str(each) for each in hooked)


@pytest.mark.requirement("MCPL-11.1-request", "MCPL-11.3-result")
@pytest.mark.requirement("MCPL-15.1-memory")
async def test_memories_are_summed_up_by_the_gateways_own_model(tmp_path: Path) -> None:
    summary = "The fair has twelve tents."
    script = ({"text": summary, "when": "^Summarize"}, {"text": "Yes.", "when": "fair"})
    with models(*script) as served:
        stage = Stage.of("memory_server", tmp_path, served)
        with stage.gateway():
            stated = " ".join(f"Tent {each} of the fair is number {each}." for each in range(12))
            await stage.turn(stated, "fair")
            await until(lambda: any("Summarize" in words_in(each) for each in served.asked()))

            async def recalled() -> str:
                await stage.turn("What is at the fair?", "elsewhere")
                return words_in(served.asked()[-1])

            while summary not in (prompt := await recalled()):
                pass
            assert "Tent 3" not in prompt


@pytest.mark.requirement("MCPL-9.1-event", "MCPL-9.3-accepted")
@pytest.mark.requirement("MCPL-15.1-memory")
async def test_a_reminder_is_a_turn_that_is_answered_in_the_topic_once(tmp_path: Path) -> None:
    script = ({"text": "Time to call!", "when": "^(?!.*Remind).*printer"}, {"text": "I will."})
    with models(*script) as served:
        stage = Stage.of("memory_server", tmp_path, served)
        with stage.gateway() as origin:
            async with seat(origin, "home") as ana:
                await ana.say("Remind me in 1 second to call the printer.")
                await until(lambda: "Time to call!" in ana.said())
        with stage.gateway() as origin:
            async with seat(origin, "home") as ana:
                await stage.turn("Nothing more?", "later")
                assert ana.said() == []
            pushed = await until(lambda: stage.journal("dev.comity.push_received"))
            assert len(pushed) == 1


def remembered(folder: Path) -> bool:
    """Whether the server's own file has it."""
    return STATED.encode() in (folder / "memories.db").read_bytes()
