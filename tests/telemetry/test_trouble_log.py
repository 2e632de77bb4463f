"""`telemetry/logging.py`: one line when a trouble begins, and one when it ends."""

import logging

import pytest

from comity.telemetry.logging import TroubleLog


def test_a_trouble_is_told_once_each_time_that_it_begins_and_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trouble = TroubleLog(logging.getLogger("comity.x"), "It is paused: %s", "It goes on.")
    trouble.end()
    for _ in range(2):
        for _ in range(100):
            trouble.begin("the store is away")
        trouble.end()
        trouble.end()
    told = ["It is paused: the store is away", "It goes on."]
    assert [record.getMessage() for record in caplog.records] == told * 2
