"""The schema for editors: up to date, and of one mind with the loader."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from comity.app.settings import SERVER_FIELDS, TABLES
from comity.app.settings_schema import json_schema
from comity.config.document import ConfigValue
from comity.config.fields import ConfigField, FieldType, fields_of
from comity.errors import Misconfigured
from comity.servers.settings import MGP_SETTINGS
from tests.app.test_settings_reader import TOML
from tests.support.cases import loop_over
from tests.support.writing import from_text

ROOT = Path(__file__).parents[2]
COPIES = (
    ROOT / "src" / "comity" / "config" / "comity.schema.json",
    ROOT / "docs" / "reference" / "comity.schema.json",
)
SCHEMA: dict[str, Any] = dict(json_schema())


def judge_of(definition: str) -> Callable[[object], bool]:
    inner = {"$ref": f"#/definitions/{definition}", "definitions": SCHEMA["definitions"]}
    return jsonschema_rs.Draft7Validator(inner).is_valid


COMITY = judge_of("comity")
CLIENTS = judge_of("clients")


@loop_over("copy", COPIES, ids=lambda copy: copy.parts[-3])
def test_the_copies_of_the_schema_are_what_the_tables_say(copy: Path) -> None:
    """To write them anew: `python -m comity.app.settings_schema`, with its output into both."""
    assert json.loads(copy.read_text("utf-8")) == SCHEMA


def test_the_schema_is_one() -> None:
    assert jsonschema_rs.meta.is_valid(SCHEMA)


def is_loaded(tmp_path: Path, text: str, name: str) -> bool:
    try:
        from_text(tmp_path, text, name, {"KEY": "k", "URL": "http://x/"})
    except Misconfigured:
        return False
    return True


ENTRIES: list[dict[str, object]] = [
    {"command": "x"},
    {"command": "x", "args": ["-y", 1], "env": {"A": "${KEY}", "B": 3}, "cwd": "/"},
    {"url": "https://example.org/mcp", "headers": {"H": "v"}},
    {"url": "${URL}", "type": "sse"},
    {"serverUrl": "https://example.org/mcp", "transport": "streamableHttp"},
    {"command": "x", "url": "http://x/", "type": "stdio"},
    {"command": "x", "url": "http://x/", "transport": "http", "type": "stdio"},
    {"command": "x", "url": None, "args": None, "mgp": None},
    {"command": "x", "restart_policy": "never", "health_interval": 0, "drain_timeout": "1.5s"},
    {"command": "x", "mgp": {"restart_window_secs": 5, "extensions": ["a"], "some_day": {}}},
    {"command": "x", "autoApprove": [], "theme": 1},
    {},
    {"comand": "x"},
    {"command": ""},
    {"command": None},
    {"command": ["x"]},
    {"command": "x", "url": "http://x/"},
    {"command": "x", "type": "http"},
    {"command": "x", "transport": "http", "type": "stdio"},
    {"url": "http://x/", "type": "stdio"},
    {"url": "http://x/", "type": "pigeon"},
    {"url": "ftp://x/"},
    {"command": "x", "args": "-y"},
    {"command": "x", "args": [True]},
    {"command": "x", "env": {"A": 1.5}},
    {"command": "x", "disabled": "yes"},
    {"command": "x", "protocol": "old"},
    {"command": "x", "max_restarts": -1},
    {"command": "x", "drain_timeout": 0},
    {"command": "x", "health_interval": False},
    {"command": "x", "mgp": {"restart_policy": "no"}},
    {"command": "x", "mgp": {"backoff_base_ms": "1s"}},
    {"command": "x", "mgp": []},
]


@loop_over("entry", ENTRIES, ids=json.dumps)
def test_an_entry_is_judged_as_the_loader_does(tmp_path: Path, entry: dict[str, object]) -> None:
    for key in ("mcpServers", "servers"):
        document = {"$schema": "./comity.schema.json", key: {"a": entry}, "port": "theirs"}
        assert CLIENTS(document) == is_loaded(tmp_path, json.dumps(document), "mcp.json")


DOCUMENTS = [
    TOML,
    "",
    '"$schema" = "./comity.schema.json"\nport = 0',
    "[limits]\nkeep_alive_timeout = 0.5\nmax_pending_input = 1",
    '[telemetry]\nlog_format = "json"\ntraces = true',
    "prot = 1",
    "[limits]\nport = 1",
    "[limits]\nmax_depth = 7",
    "[telemetry]\nlog_format = 1",
    "limits = 1",
    "servers = 1",
    "port = 65536",
    "allowed_hosts = ['http://x']",
    '[[servers]]\ncommand = "x"',
    '[[servers]]\nid = "a__b"\ncommand = "x"',
    '[[servers]]\nid = "a_"\ncommand = "x"',
    '[[servers]]\nid = "a"\ncomand = "x"',
    '[[servers]]\nid = "a"\nserverUrl = "http://x/"',
    '[[servers]]\nid = "a"\ncommand = "x"\nicon = 1',
]


@loop_over("text", DOCUMENTS)
def test_comity_toml_is_judged_as_the_loader_does(tmp_path: Path, text: str) -> None:
    assert COMITY(tomllib.loads(text)) == is_loaded(tmp_path, text, "comity.toml")


@loop_over("text", ["{}", "[]", '{"mcpServers": []}', '{"mcpServers":{},"servers":{}}'])
def test_a_clients_file_has_its_servers_once(tmp_path: Path, text: str) -> None:
    assert not CLIENTS(json.loads(text))
    assert not is_loaded(tmp_path, text, "mcp.json")


SETTINGS = [
    *((name, each) for name, table in TABLES.items() for each in fields_of(table).values()),
    *(("servers", each) for each in SERVER_FIELDS.values()),
]
KINDS = [
    *(setting.kind for _, setting in SETTINGS),
    *(kind for _, kind in MGP_SETTINGS.values()),
]
WORDS = [
    "never",
    "text",
    "true",
    "1s",
    "0s",
    "250 ms",
    "1.5h",
    "9",
    "a b",
    "https://x.org",
    "[::1]",
]
# Without what only one side can tell: 7.0 is a whole number to a schema, and 367d a fine length.
VALUES = (
    st.sampled_from(WORDS)
    | st.text("ab:/.-_ 19", max_size=8)
    | st.booleans()
    | st.none()
    | st.integers(-10, 2**31)
    | st.sampled_from([0.5, -0.5, 1e9 + 0.5])
    | st.lists(st.sampled_from(WORDS) | st.integers(0, 1), max_size=2)
    | st.dictionaries(st.sampled_from(WORDS), st.integers(), max_size=1)
)


@given(st.sampled_from(KINDS), VALUES)
def test_a_value_is_good_for_both_or_for_neither(kind: FieldType, value: object) -> None:
    try:
        kind.read(ConfigValue(value, "f", ("it",)))
        is_read = True
    except Misconfigured:
        is_read = False
    assert jsonschema_rs.Draft7Validator(dict(kind.schema)).is_valid(value) == is_read


@loop_over(("table", "setting"), SETTINGS)
def test_an_editor_shows_what_each_setting_is_for_and_its_default(
    table: str, setting: ConfigField
) -> None:
    place = SCHEMA["definitions"]["server" if table == "servers" else "comity"]
    if table not in ("", "servers"):
        place = place["properties"][table]
    shown = place["properties"][setting.name]
    assert shown["description"] == setting.description
    assert jsonschema_rs.Draft7Validator(shown).is_valid(shown["default"])
