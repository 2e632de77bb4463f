"""Servers around a model that do all they should not: each turn ends, rightly and in time."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.live.hook_cases import CASES, SECRET, Case
from tests.live.turn_scene import Hook, Scene, gives, injection, playing
from tests.pace import at_length, here

FINE = Hook("fine", (gives(injection("FINE", namespace="fine")),))
PLAYED = at_length(CASES, CASES[::2])
LITTLE = timedelta(seconds=1)
BETWEEN = 60.0
"""Seconds that all else in a turn may take on a machine that does other things too."""


def test_there_are_enough_cases_and_each_has_a_name() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    assert len(PLAYED) >= 60


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: case.id)
async def test_a_turn_ends_whatever_a_server_does(case: Case, tmp_path: Path) -> None:
    # Where time is short nobody else is asked, who might not be quick enough either.
    fine = () if case.is_timed else (FINE,)
    times = (
        dict.fromkeys(("turns_before_hook_timeout", "turns_after_hook_timeout"), LITTLE)
        if case.is_timed
        else {}
    )
    async with playing(
        tmp_path, (case.hook, *case.others, *fine), **times, **case.settings
    ) as scene:
        turn = await scene.turn("hello")
        _said(case, turn)
        _in_time(turn)
        prompt = scene.prompt()
        assert all(part in prompt for part in ("hello", *case.reads)), prompt[:3000]
        assert not any(part in prompt for part in case.misses), prompt[:3000]
        if fine:
            assert "FINE" in prompt
        assert tuple(turn["rewrote"]) == case.rewrote
        await _noted(case, scene, turn)
        if case.check is not None:
            case.check(scene)


def _said(case: Case, turn: dict[str, Any]) -> None:
    assert turn["state"] == case.state, turn
    if case.state == "withheld":
        assert "withheld" in turn["reply"]
        assert "from the model" not in turn["reply"]
        assert "did not look" in turn["error"]
    elif SECRET in str(case.hook.after):
        assert turn["reply"].startswith(str(case.said))
        assert SECRET not in turn["reply"]
    else:
        assert turn["reply"] == case.said


def _in_time(turn: dict[str, Any]) -> None:
    taken = (turn["ended_at"] - turn["at"]).total_seconds()
    assert taken < here(BETWEEN)


async def _noted(case: Case, scene: Scene, turn: dict[str, Any]) -> None:
    method = f"context/{case.id.partition('-')[0]}Inference"
    found = await scene.noted("hook_called", server="odd", method=method)
    assert all(each["details"]["inference_id"] == turn["id"] for each in found)
    if case.outcome is not None:
        assert case.outcome in [each["details"]["outcome"] for each in found], found
    asked = scene.heard("odd", method)
    assert len(asked) <= case.asked
    assert all("featureSet" not in each["params"] for each in asked)


async def test_what_comes_too_late_is_in_no_later_turn(tmp_path: Path) -> None:
    deeds: Any = ({"do": "sleep", "seconds": 2}, gives(injection("ODD $CONVERSATION")))
    async with playing(
        tmp_path,
        [Hook("odd", deeds)],
        turns_before_hook_timeout=LITTLE,
        turns_after_hook_timeout=LITTLE,
    ) as scene:
        first = await scene.turn("hello", conversation="one")
        second = await scene.turn("hello again", conversation="two")
        assert [first["injected"], second["injected"]] == [[], []]
        assert "ODD" not in scene.prompt()


def _moments(scene: Scene, names: Iterator[str] | list[str]) -> list[float]:
    return [each["_at"] for name in names for each in scene.heard(name, "context/beforeInference")]


async def test_ten_servers_take_as_long_as_the_slowest_and_not_as_all_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = [0.2 * number for number in range(1, 11)]
    hooks = [
        Hook(f"h{number}", ({"do": "sleep", "seconds": each}, gives(injection(f"WORD{number}"))))
        for number, each in enumerate(waits)
    ]
    arrived: list[float] = []

    def answer(_: Any) -> None:
        arrived.append(time.monotonic())

    async with playing(tmp_path, hooks, answer=answer) as scene:
        turn = await scene.turn("hello")
        assert len(turn["injected"]) == 10
        begun = min(_moments(scene, [each.name for each in hooks]))
        taken = arrived[0] - begun
    with capsys.disabled():
        print(
            f"\nten hook servers: {taken:.2f} s; the slowest {max(waits):.2f} s, all together "
            f"{sum(waits):.2f} s: {taken / max(waits):.2f} of the slowest, "
            f"{taken / sum(waits):.2f} of the sum"
        )
    assert max(waits) <= taken < 0.7 * sum(waits)
