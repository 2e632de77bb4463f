"""Every setting in its table: read, defaulted, documented; and MGP's own spellings."""

import json
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest

from comity.config import SERVER_SETTINGS, SETTINGS, ServerSettings, Settings, Supervision
from comity.config.kinds import plain
from comity.config.tables import TABLES, default_of
from comity.wire.errors import Misconfigured
from tests.config.writing import from_text, one

SETTINGS_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"

CARE = """
[[servers]]
id = "a"
command = "x"
era = "modern"
containment = "group"
restart_policy = "always"
max_restarts = 0
restart_window = "1m"
backoff_base = "250ms"
backoff_max = 5
health_interval = 0
drain_deadline = "2s"
"""


def test_the_care_for_a_server_is_its_own(tmp_path: Path) -> None:
    (server,) = from_text(tmp_path, CARE).servers
    assert (server.era, server.containment) == ("modern", "group")
    assert server.supervision == Supervision(
        "always",
        0,
        timedelta(minutes=1),
        timedelta(milliseconds=250),
        timedelta(seconds=5),
        timedelta(),
        timedelta(seconds=2),
    )
    in_json = one(tmp_path, {"command": "x", "era": "handshake", "backoff_max": "1m"})
    assert (in_json.era, in_json.supervision.backoff_max) == ("handshake", timedelta(minutes=1))


MGP: dict[str, object] = {
    "restart_policy": "never",
    "max_restarts": 7,
    "restart_window_secs": 60,
    "backoff_base_ms": 10,
    "backoff_max_ms": 20,
    "trust_level": "sandboxed",
    "permissions_required": ["network.outbound"],
    "extensions": ["security", "lifecycle"],
    "some_day": {"x": "${NOT_EXPANDED}"},
}


def test_the_table_of_mgp_is_read_by_its_own_spellings_and_kept(tmp_path: Path) -> None:
    server = one(tmp_path, {"command": "x", "mgp": MGP})
    assert server.supervision == Supervision(
        "never",
        7,
        timedelta(minutes=1),
        timedelta(milliseconds=10),
        timedelta(milliseconds=20),
    )
    assert server.trust_level == "sandboxed"
    assert server.permissions_required == ("network.outbound",)
    assert server.extensions == ("security", "lifecycle")
    assert server.mgp == MGP


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"restart_policy": "sometimes"}, "restart_policy: must be one of: never, on_failure"),
        ({"max_restarts": -1}, "max_restarts: must be between 0"),
        ({"health_interval": "-1s"}, "health_interval: must be a time"),
        ({"health_interval": False}, "health_interval: must be a time"),
        ({"drain_deadline": 0}, "drain_deadline: must be a time"),
        ({"era": "old"}, "era: must be one of: auto, handshake, modern"),
        ({"mgp": {"restart_policy": "no"}}, "mgp.restart_policy: must be one of"),
        ({"mgp": {"backoff_base_ms": "1s"}}, "mgp.backoff_base_ms: must be a whole number"),
        ({"mgp": {"trust_level": "best"}}, "mgp.trust_level: must be one of: trusted, standard"),
        ({"mgp": {"extensions": "security"}}, "mgp.extensions: must be a list"),
        ({"mgp": {"permissions_required": [""]}}, r"permissions_required\[0\]: must be written as"),
        (
            {"mgp": {"max_restarts": 1}, "max_restarts": 1},
            "mgp.max_restarts: stands outside of this table too",
        ),
    ],
)
def test_a_mistake_in_the_care_is_named(
    tmp_path: Path, entry: dict[str, object], told: str
) -> None:
    with pytest.raises(Misconfigured, match=told):
        one(tmp_path, {"command": "x", **entry})


def test_every_setting_is_in_the_table() -> None:
    assert [setting.field for setting in SETTINGS] == [
        each.name for each in fields(Settings) if each.name != "servers"
    ]
    decided = {setting.name for setting in SERVER_SETTINGS}
    assert {each.name for each in fields(Supervision)} < decided


def test_every_default_would_be_accepted_from_a_file(tmp_path: Path) -> None:
    lines = {"": "", **{table: f"[{table}]\n" for table in TABLES}}
    lines["servers"] = '[[servers]]\nid = "a"\ncommand = "x"\n'
    for setting in (*SETTINGS, *SERVER_SETTINGS):
        value = default_of(setting)
        if isinstance(value, timedelta):
            value = value.total_seconds()
        lines[setting.table] += f"{setting.name} = {json.dumps(value)}\n"
    plain = ServerSettings("a", "a", "stdio", command="x")
    assert from_text(tmp_path, "".join(lines.values())) == Settings(servers=(plain,))


def test_every_setting_is_documented() -> None:
    rows = [
        line for line in SETTINGS_PAGE.read_text("utf-8").splitlines() if line.startswith("| `")
    ]
    assert rows == [
        f"| `{f'{each.table}.' if each.table else ''}{each.name}` "
        f"| `{json.dumps(plain(default_of(each)))}` | {each.help} |"
        for each in (*SETTINGS, *SERVER_SETTINGS)
    ]
