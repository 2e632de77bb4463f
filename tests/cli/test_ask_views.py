"""Asks as a list at a terminal, wide and narrow."""

from datetime import UTC, datetime, timedelta

import pytest

from comity.cli.ask_views import listed
from comity.cli.show import show
from comity.wire.asks import Ask, Kind


def ask(id: str, **arguments: str) -> Ask:
    about = {"tool": "example__echo", "risk": "dangerous", "arguments": arguments}
    now = datetime.now(UTC)
    named = (id, Kind.CONFIRM, "agent:ci", "example", "echo", "d" * 64, "Echo?", about)
    return Ask(*named, now, now + timedelta(minutes=15))


LONG = "remove everything below /srv/data and then tell ana@example.org what was removed"
ASKS = [ask("06gtu5so8n7jlh0rmk51g7iu0g", message=LONG), ask("06gtu6aa8n7jlh0rmk51g7iu0g", a="b")]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    show(listed(ASKS))
    return capsys.readouterr().out.splitlines()


def test_a_narrow_terminal_shows_arguments_whole_below_each_ask(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = lines(capsys)
    assert max(map(len, shown)) <= 80
    assert shown[0].split() == ["ID", "AGE", "RISK", "EXPIRES", "IN", "WHO"]
    assert shown[1].split() == ["WHAT"]
    assert shown[2].startswith("06gtu5so  ")
    assert shown[2].index("agent:ci") == shown[0].index("WHO")
    text = " ".join(line.strip() for line in shown[3:])
    assert f'call example__echo {{"message": "{LONG}"}}' in text
    assert shown[-1].strip() == 'call example__echo {"a": "b"}'


def test_a_wide_terminal_shows_each_ask_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "180")
    header, first, second = lines(capsys)
    assert header.endswith("WHO       WHAT")
    assert first.endswith(f'call example__echo {{"message": "{LONG}"}}')
    assert second.endswith('call example__echo {"a": "b"}')
