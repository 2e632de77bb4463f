"""Which configuration files are read, what each setting may be, and how a mistake is reported."""

import json
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.app.settings import SERVER_FIELDS, TABLES, ServerSettings, Settings
from comity.app.settings_reader import (
    VARIABLES,
    ConfigSource,
    LoadedConfig,
    SettingsChanges,
    compare_settings,
    find_config,
)
from comity.config.fields import fields_of
from comity.errors import Misconfigured
from comity.gateway.settings import LimitSettings
from comity.mcp.protocol import derived_id
from comity.servers.packages.model import WrittenEntry
from comity.servers.settings import SupervisionSettings
from comity.telemetry.settings import TelemetrySettings
from tests.support.cases import loop_over
from tests.support.writing import from_json, from_text, one

ID_JAG = {"grant": "id_jag", "issuer": "https://i", "client_id": "a", "client_secret": "b"}


def test_the_file_of_a_desktop_client_is_taken_verbatim(tmp_path: Path) -> None:
    settings = from_json(
        tmp_path,
        {
            "theme": "dark",
            "mcpServers": {
                "files": {
                    "command": "npx",
                    "args": ["-y", "server-filesystem", "/srv"],
                    "env": {"LOG": "warn", "PORT": 3000},
                    "cwd": "/srv",
                    "autoApprove": ["read"],
                    "timeout": 60,
                },
                "search": {
                    "url": "https://search.example.org/mcp",
                    "headers": {"Authorization": "Bearer t"},
                },
            },
        },
    )
    files, search = settings.servers
    assert (files.id, files.label, files.transport) == ("files", "files", "stdio")
    assert (files.command, files.args) == ("npx", ("-y", "server-filesystem", "/srv"))
    assert (dict(files.env), files.cwd) == ({"LOG": "warn", "PORT": "3000"}, "/srv")
    assert (search.transport, search.url) == ("http", "https://search.example.org/mcp")
    assert dict(search.headers) == {"Authorization": "Bearer t"}
    assert (search.process_per, search.disabled, search.cwd) == ("gateway", False, None)
    assert settings.port == 2664


def test_the_servers_key_of_editors_is_the_same(tmp_path: Path) -> None:
    document = {"servers": {"a": {"type": "stdio", "command": "x"}}, "inputs": [1]}
    assert from_json(tmp_path, document).servers[0].command == "x"


@loop_over(
    ("said", "transport"),
    [
        ({}, "http"),
        ({"type": "http"}, "http"),
        ({"type": "streamable-http"}, "http"),
        ({"transport": "streamableHttp"}, "http"),
        ({"type": "sse"}, "sse"),
        ({"transport": "sse"}, "sse"),
    ],
)
def test_a_url_is_reached_by(tmp_path: Path, said: dict[str, str], transport: str) -> None:
    assert one(tmp_path, {"url": "http://127.0.0.1:1/", **said}).transport == transport


def test_nulls_count_as_absent_keys(tmp_path: Path) -> None:
    entry = {"command": "x", "args": None, "env": None, "url": None, "cwd": None, "disabled": True}
    server = one(tmp_path, entry)
    assert (server.args, dict(server.env), server.cwd) == ((), {}, None)
    assert server.disabled


TOML = """
host = "0.0.0.0"
port = 0
allowed_hosts = ["gateway.example.org", "[2001:db8::1]"]
allowed_origins = ["https://app.example.org"]

[limits]
max_message_bytes = 65536
call_idle_timeout = "2m"
session_idle_timeout = 90

[[servers]]
id = "sea.almanac"
command = "python"
args = ["server.py"]
transport = "stdio"
process_per = "session"

[servers.mgp]
extensions = ["security"]
trust_level = "standard"

[servers.env]
KEY = "${KEY}"

[[servers]]
id = "far"
url = "https://example.org/mcp"
headers = { X-Key = "${KEY}" }
"""


def test_comity_toml_holds_settings_and_servers(tmp_path: Path) -> None:
    settings = from_text(tmp_path, TOML, environ={"KEY": "k"})
    mind, far = settings.servers
    assert (settings.host, settings.port) == ("0.0.0.0", 0)
    assert settings.allowed_hosts == ("gateway.example.org", "[2001:db8::1]")
    assert settings.allowed_origins == ("https://app.example.org",)
    assert (settings.limits.max_message_bytes, settings.limits.max_depth) == (65536, 64)
    assert settings.limits.call_idle_timeout == timedelta(minutes=2)
    assert settings.limits.session_idle_timeout == timedelta(seconds=90)
    assert (mind.id, mind.process_per, mind.env["KEY"]) == ("sea.almanac", "session", "k")
    assert mind.mgp == {"extensions": ["security"], "trust_level": "standard"}
    assert (far.transport, far.headers["X-Key"], far.mgp) == ("http", "k", {})


def test_an_empty_comity_toml_is_all_defaults(tmp_path: Path) -> None:
    assert from_text(tmp_path, "") == Settings()


def test_variables_are_expanded_wherever_a_text_goes_out(tmp_path: Path) -> None:
    environ = {"V": "v", "COMMAND": "run"}
    program = one(
        tmp_path,
        {"command": "${COMMAND}", "args": ["-${V}"], "env": {"${V}": "${V}"}, "cwd": "/${V}"},
        environ,
    )
    assert (program.command, program.args, program.cwd) == ("run", ("-v",), "/v")
    assert dict(program.env) == {"${V}": "v"}
    remote = one(tmp_path, {"url": "https://${V}.org/", "headers": {"H": "${W:-w}"}}, environ)
    assert (remote.url, remote.headers["H"]) == ("https://v.org/", "w")


@loop_over(
    ("entry", "where"),
    [
        ({"command": "${NO}"}, "it.command"),
        ({"command": "x", "args": ["a", "${NO}"]}, r"it.args\[1\]"),
        ({"command": "x", "env": {"KEY": "${NO}"}}, "it.env.KEY"),
        ({"command": "x", "cwd": "${NO}"}, "it.cwd"),
        ({"url": "https://${NO}/"}, "it.url"),
        ({"url": "https://x/", "headers": {"H": "${NO}"}}, "it.headers.H"),
    ],
)
def test_a_missing_variable_is_named_with_its_server_and_key(
    tmp_path: Path, entry: object, where: str
) -> None:
    with pytest.raises(Misconfigured, match=rf"mcp\.json:1: mcpServers\.{where}: .*NO is not set"):
        one(tmp_path, entry)


@loop_over(
    ("label", "server_id"),
    [
        ("plain", "plain"),
        ("Git.Hub-2_x", "Git.Hub-2_x"),
        ("My Server!", "My-Server"),
        ("a__b", "a_b"),
        ("trailing_", "trailing"),
        ("@scope/name", "scope-name"),
        ("x" * 80, "x" * 64),
        ("\u6587\u4ef6", "server-39932f24"),
    ],
)
def test_a_name_that_is_no_id_gets_one_and_stays_as_the_label(
    tmp_path: Path, label: str, server_id: str
) -> None:
    (server,) = from_json(tmp_path, {"mcpServers": {label: {"command": "x"}}}).servers
    assert (server.label, server.id) == (label, server_id)


@given(st.text())
def test_any_name_gets_an_id_that_is_safe_in_a_path_and_before_a_tool(label: str) -> None:
    server_id = derived_id(label)
    assert 1 <= len(server_id) <= 64
    assert server_id.isascii()
    assert "__" not in server_id
    assert not server_id.endswith("_")
    assert derived_id(server_id) == server_id


@loop_over(("first", "second"), [("a b", "a-b"), ("Files", "files")])
def test_two_servers_with_one_id_are_refused(tmp_path: Path, first: str, second: str) -> None:
    servers = {first: {"command": "x"}, second: {"command": "y"}}
    with pytest.raises(Misconfigured, match=f"'{first}' and '{second}' would share the id"):
        from_json(tmp_path, {"mcpServers": servers})


@loop_over(
    ("entry", "told"),
    [
        ({}, "needs a command to start, or a url to call"),
        ([], "must be a table"),
        ({"command": "x", "url": "http://x/"}, "a command and a url; keep one"),
        ({"command": "x", "type": "http"}, "needs a url, as its transport is http"),
        ({"url": "http://x/", "type": "stdio"}, "needs a command"),
        ({"url": "http://x/", "type": "carrier-pigeon"}, "one of: stdio, http"),
        ({"url": "ftp://x/"}, "whole URL"),
        ({"url": "//x/"}, "whole URL"),
        ({"url": "http://[x/"}, "whole URL"),
        ({"command": ""}, "is empty"),
        ({"command": "x\0"}, "NUL"),
        ({"command": ["x"]}, "must be a text"),
        ({"command": "x", "args": "-y"}, "must be a list"),
        ({"command": "x", "args": [["-y"]]}, "must be a text"),
        ({"command": "x", "env": ["A=1"]}, "must be a table"),
        ({"command": "x", "env": {"A": True}}, "must be a text"),
        ({"command": "x", "env": {"A": 1.5}}, "must be a text"),
        ({"command": "x", "process_per": "all"}, "one of: gateway, session"),
        ({"command": "x", "disabled": "yes"}, "true or false"),
        ({"url": "http://x/", "oauth": {"grant": "id_jag"}}, "needs client_id and client_secret"),
        *(
            ({"url": "http://x/", "oauth": {**oauth, "issuer": ""}}, "a client_id and no issuer")
            for oauth in ({"client_id": "a"}, ID_JAG)
        ),
        ({"url": "http://x/", "oauth": {**ID_JAG, "audience": "a"}}, "only the grant token_exch"),
        ({"url": "http://x/", "oauth": ID_JAG, "account": "shared"}, "is of each person"),
        ({"url": "http://x/", "oauth": {**ID_JAG, "grant": "token_exchange"}}, "has a client"),
        ({"url": "http://x/", "oauth": {"identity_issuer": "https://a"}}, "has an identity_issuer"),
    ],
)
def test_a_server_that_cannot_be_is_refused(tmp_path: Path, entry: object, told: str) -> None:
    with pytest.raises(Misconfigured, match=rf"mcp\.json:1: mcpServers\.it.*{told}"):
        one(tmp_path, entry)


@loop_over(
    ("text", "told"),
    [
        ("prot = 1", "comity.toml:1: prot: there is no such key; did you mean 'port'"),
        ("[limits]\ndeepth = 1", "limits.deepth: .*did you mean 'max_depth'"),
        ("[limits]\nport = 1", "limits.port: there is no such key"),
        ('[[servers]]\nid = "a"\ncomand = "x"', r"servers\[a\].comand: .*did you mean 'command'"),
        ('[[servers]]\ncommand = "x"', r"servers\[0\]: needs an id"),
        ('[[servers]]\nid = 1\ncommand = "x"', r"servers\[0\].id: must be a text"),
        ('[[servers]]\nid = "a__b"\ncommand = "x"', "or hold __"),
        ('[[servers]]\nid = "a_"\ncommand = "x"', "must not end with _"),
        ('[[servers]]\nid = "a/b"\ncommand = "x"', "must have 1 to 64"),
        ('[[servers]]\nid = "a"\ncommand = "${NO}"', r"servers\[a\].command: .*NO is not set"),
        ('[[servers]]\nid="a"\ncommand="x"\n' * 2, "would share the id 'a'"),
        ("servers = 1", "servers: must be a list"),
        ("limits = 1", "limits: must be a table"),
        ("host = 1", "host: must be a text"),
        ("port = 65536", "port: must be between 0 and 65535"),
        ('port = "80"', "port: must be a whole number"),
        ("allowed_hosts = 'x'", "allowed_hosts: must be a list"),
        ("allowed_hosts = ['http://x']", r"allowed_hosts\[0\]: must be written as gateway"),
        ("allowed_origins = ['x']", r"allowed_origins\[0\]: must be written as https"),
        ("[limits]\ngrace = nan", "limits.grace: there is no such key"),
        ("[limits]\nkeep_alive_timeout = nan", "limits.keep_alive_timeout: must be a time"),
        ('[audit]\ndangerous = "off"', "audit.dangerous: must be one of: deferred, durable"),
        ("port = 1\nport = 2\n", ":2: is not TOML: Cannot overwrite a value, at column 9"),
        ("[", "is not TOML"),
    ],
)
def test_a_mistake_in_comity_toml_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, text)


def test_the_given_environment_sets_host_and_port_over_the_file(tmp_path: Path) -> None:
    environ = {"COMITY_HOST": "::1", "COMITY_PORT": "81", "HOST": "::", "PORT": "7"}
    settings = from_text(tmp_path, "port = 80", environ=environ)
    assert (settings.host, settings.port) == ("::1", 81)
    for wrong in ("x", "-1", "99999", "9" * 5000):
        for name in ("COMITY_PORT", "PORT"):
            with pytest.raises(Misconfigured, match=f"^{name}: must be"):
                from_text(tmp_path, "", environ={name: wrong})


def test_common_variables_count_for_settings_that_no_file_has(tmp_path: Path) -> None:
    environ = {
        "HOST": "::1",
        "PORT": "7",
        "DATABASE_URL": "postgres://db/x",
        "NATS_URL": "nats://n:4222",
    }
    bare = from_text(tmp_path, "", environ=environ)
    assert (bare.host, bare.port) == ("::1", 7)
    assert (bare.store.url, bare.cluster.url) == ("postgres://db/x", "nats://n:4222")
    text = 'port = 0\n[store]\nurl = "sqlite:///${NAME}.db"'
    written = from_text(tmp_path, text, environ={**environ, "NAME": "a"})
    assert (written.port, written.store.url) == (0, "sqlite:///a.db")


@loop_over(
    ("environ", "host"),
    [
        ({"HOST": "x86_64-conda-linux-gnu"}, "127.0.0.1"),
        ({"HOST": "laptop.local"}, "127.0.0.1"),
        ({"HOST": "localhost"}, "localhost"),
        ({"HOST": "0.0.0.0"}, "0.0.0.0"),
        ({"HOST": ""}, "127.0.0.1"),
    ],
)
def test_the_variable_host_counts_where_it_is_an_address(
    tmp_path: Path, environ: dict[str, str], host: str
) -> None:
    assert from_text(tmp_path, "", environ=environ).host == host


@loop_over(
    ("name", "text", "setting", "value"),
    [
        ("COMITY_LIMITS_MAX_SESSIONS", "12", "limits.max_sessions", 12),
        ("COMITY_IDENTITY_CLOCK_SKEW", "1m", "identity.clock_skew", timedelta(minutes=1)),
        ("COMITY_IDENTITY_CLOCK_SKEW", "90", "identity.clock_skew", timedelta(seconds=90)),
        ("COMITY_IDENTITY_MODE", "required", "identity.mode", "required"),
        ("COMITY_TELEMETRY_TRACES", "true", "telemetry.traces", True),
        ("COMITY_TELEMETRY_TRACES", "1", "telemetry.traces", True),
        ("COMITY_REMOTE_SHUTDOWN", "TRUE", "remote_shutdown", True),
        (
            "COMITY_ALLOWED_HOSTS",
            "a.example, b.example",
            "allowed_hosts",
            ("a.example", "b.example"),
        ),
        ("COMITY_ALLOWED_HOSTS", '["a.example"]', "allowed_hosts", ("a.example",)),
    ],
)
def test_a_variable_sets_any_setting(
    tmp_path: Path, name: str, text: str, setting: str, value: object
) -> None:
    table, _, key = setting.rpartition(".")
    settings = from_text(tmp_path, "", environ={name: text})
    assert getattr(getattr(settings, table) if table else settings, key) == value


def test_lists_of_tables_are_written_as_in_the_file(tmp_path: Path) -> None:
    grant = '[{subject = "person:a", verb = "*", target = "files/*"}]'
    told = from_text(tmp_path, f"grants = {grant}")
    assert from_text(tmp_path, "", environ={"COMITY_GRANTS": grant}).grants == told.grants


@loop_over(
    ("environ", "told"),
    [
        ({"COMITY_LIMITS_MAX_SESSIONS": "many"}, "COMITY_LIMITS_MAX_SESSIONS: must be a whole"),
        ({"COMITY_TELEMETRY_TRACES": "perhaps"}, "COMITY_TELEMETRY_TRACES: must be true or"),
        ({"COMITY_IDENTITY_MODE": "open"}, "COMITY_IDENTITY_MODE: must be one of"),
        ({"COMITY_LIMITS_MAX_SESIONS": "1"}, "did you mean COMITY_LIMITS_MAX_SESSIONS"),
        ({"DATABASE_URL": "mysql://s3cret@db/x"}, "DATABASE_URL: must be as sqlite"),
        ({"NATS_URL": "amqp://s3cret"}, "NATS_URL: must be as nats"),
        ({"COMITY_PORT_FILE": "/no/such"}, "COMITY_PORT_FILE: /no/such cannot be read"),
        ({"COMITY_PORT": "1", "COMITY_PORT_FILE": "/x"}, "COMITY_PORT_FILE: COMITY_PORT is set"),
    ],
)
def test_an_error_names_the_variable_and_not_its_value(
    tmp_path: Path, environ: dict[str, str], told: str
) -> None:
    with pytest.raises(Misconfigured, match=told) as refused:
        from_text(tmp_path, "", environ=environ)
    assert "s3cret" not in str(refused.value)


def test_a_variable_may_name_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("postgresql://u:s3cret@db/x\n")
    file.chmod(0o600)
    for name in ("COMITY_STORE_URL", "DATABASE_URL"):
        settings = from_text(tmp_path, "", environ={f"{name}_FILE": str(file)})
        assert settings.store.url == "postgresql://u:s3cret@db/x"
    file.chmod(0o644)
    with pytest.raises(Misconfigured, match=r"^COMITY_STORE_URL_FILE: other users can read"):
        from_text(tmp_path, "", environ={"COMITY_STORE_URL_FILE": str(file)})
    file.chmod(0o600)
    file.write_text("mysql://s3cret")
    with pytest.raises(Misconfigured, match=r"^COMITY_STORE_URL_FILE: must be as"):
        from_text(tmp_path, "", environ={"COMITY_STORE_URL_FILE": str(file)})


def test_the_variables_of_a_kubernetes_service_are_no_settings(tmp_path: Path) -> None:
    environ = {
        "COMITY_PORT": "tcp://10.0.0.1:2664",
        "COMITY_PORT_2664_TCP_ADDR": "10.0.0.1",
        "COMITY_SERVICE_HOST": "10.0.0.1",
        "COMITY_STORE_PORT": "tcp://10.0.0.2:5432",
        "COMITY_STORE_SERVICE_PORT_DB": "5432",
        "COMITY_STORE_PORT_5432_TCP": "tcp://10.0.0.2:5432",
    }
    assert from_text(tmp_path, "", environ=environ) == from_text(tmp_path, "")


def test_each_variable_means_one_setting() -> None:
    count = sum(len(fields_of(table)) for table in TABLES.values())
    assert len(VARIABLES) == count
    # NAME_FILE would be both a setting of its own and the file of another setting.
    assert not {f"{name}_FILE" for name in VARIABLES} & set(VARIABLES)
    # The command line reads these.
    assert not {"COMITY_URL", "COMITY_KEY", "COMITY_PEPPER", "COMITY_STATE_DIR"} & set(VARIABLES)


def test_no_secret_is_in_a_repr(tmp_path: Path) -> None:
    document = {
        "mcpServers": {
            "a": {"command": "x", "args": ["--token=S3CRET"], "env": {"KEY": "S3CRET"}},
            "b": {
                "url": "https://u:S3CRET@example.org/S3CRET?key=S3CRET",
                "headers": {"Authorization": "Bearer S3CRET"},
                "mgp": {"x": "S3CRET"},
            },
        }
    }
    settings = from_json(tmp_path, document)
    for shown in (repr(settings), str(settings), f"{settings.servers}"):
        assert "S3CRET" not in shown
        assert "KEY" in shown
        assert "Authorization" in shown
        assert "example.org" in shown


@loop_over(
    "text",
    [
        '{"mcpServers": {"a": {"command": "x", "env": {"K": ["S3CRET"]}}}}',
        '{"mcpServers": {"a": {"url": "S3CRET"}}}',
        '{"mcpServers": {"a": {"command": "x", "env": {"K": "S3CRET ${NO}"}}}}',
        '{"mcpServers": {"a": {"command": "x", "env": {"K": "S3CRET" "x"}}}}',
        '{"mcpServers": {"a": {"type": "S3CRET"}}}',
    ],
)
def test_no_secret_is_in_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(Misconfigured) as problem:
        from_text(tmp_path, text, "mcp.json")
    chain = [problem.value, problem.value.__cause__]
    assert "S3CRET" not in repr(chain)


WRONG_TOML = """\
prot = 80
host = 1

[limits]
call_idle_timeout = "5 minutes"

[[servers]]
id = "a"
comand = "x"
args = [1, "${NO}",
  "${ALSO_NOT}"]
[servers.env]
K = "S3CRET ${NO}"
[servers.mgp]
restart_policy = "sometimes"

[[servers]]
command = "x"

[[servers]]
id = "A"
url = "S3CRET"
"""


def test_all_mistakes_of_a_file_are_told_at_once_each_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured) as problem:
        from_text(tmp_path, WRONG_TOML)
    first, *lines = str(problem.value).splitlines()
    assert first == "there are 11 mistakes in the configuration"
    keys = [line.partition("comity.toml:")[2].split(": ")[:2] for line in lines]
    assert keys == [
        ["1", "prot"],
        ["2", "host"],
        ["5", "limits.call_idle_timeout"],
        ["9", "servers[a].comand"],
        ["10", "servers[a].args[1]"],
        ["11", "servers[a].args[2]"],
        ["13", "servers[a].env.K"],
        ["15", "servers[a].mgp.restart_policy"],
        ["17", "servers[1]"],
        ["20", "servers[A]"],
        ["22", "servers[A].url"],
    ]
    assert "S3CRET" not in str(problem.value)
    assert [mistake.line for mistake in problem.value.args[0].found][:3] == [1, 2, 5]


WRONG_JSON = """{
  "mcpServers": {
    "a b": {"comand": "x"},
    "a-b": {
      "url": "x", "headers": {
        "A": "${NO}"
      }
    },
    "c": {"command": "${input:key}"},
    "d": 5
  }
}
"""


def test_json_is_told_of_by_line_as_well(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured) as problem:
        from_text(tmp_path, WRONG_JSON, "mcp.json")
    told = str(problem.value)
    for expected in (
        "mcp.json:3: mcpServers.a b.comand: there is no such key; did you mean 'command'?",
        "mcp.json:4: mcpServers.a-b: servers 'a b' and 'a-b' would share the id",
        "mcp.json:5: mcpServers.a-b.url: must be a whole URL",
        "mcp.json:6: mcpServers.a-b.headers.A: the variable NO is not set",
        "mcp.json:9: mcpServers.c.command: an ${input:...} is a prompt of an editor",
        "mcp.json:10: mcpServers.d: must be a table",
    ):
        assert expected in told


def test_of_very_many_mistakes_the_first_are_told(tmp_path: Path) -> None:
    entries = {f"s{number}": {"command": "${NO}"} for number in range(50)}
    with pytest.raises(Misconfigured) as problem:
        from_json(tmp_path, {"mcpServers": entries})
    lines = str(problem.value).splitlines()
    assert (len(lines), lines[-1]) == (22, "  and 30 more")


CARE = """
[[servers]]
id = "a"
command = "x"
protocol = "2026-07-28"
process_cleanup = "group"
restart_policy = "always"
max_restarts = 0
restart_window = "1m"
backoff_base = "250ms"
backoff_max = 5
health_interval = 0
drain_timeout = "2s"
"""


def test_the_care_for_a_server_is_its_own(tmp_path: Path) -> None:
    (server,) = from_text(tmp_path, CARE).servers
    assert (server.protocol, server.process_cleanup) == ("2026-07-28", "group")
    assert server.supervision == SupervisionSettings(
        "always",
        0,
        timedelta(minutes=1),
        timedelta(milliseconds=250),
        timedelta(seconds=5),
        timedelta(),
        timedelta(seconds=2),
    )
    in_json = one(tmp_path, {"command": "x", "protocol": "2025-11-25", "backoff_max": "1m"})
    assert (in_json.protocol, in_json.supervision.backoff_max) == (
        "2025-11-25",
        timedelta(minutes=1),
    )


MGP_TABLE: dict[str, object] = {
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
    server = one(tmp_path, {"command": "x", "mgp": MGP_TABLE})
    assert server.supervision == SupervisionSettings(
        "never",
        7,
        timedelta(minutes=1),
        timedelta(milliseconds=10),
        timedelta(milliseconds=20),
    )
    assert server.trust_level == "sandboxed"
    assert server.permissions_required == ("network.outbound",)
    assert server.extensions == ("security", "lifecycle")
    assert server.mgp == MGP_TABLE


@loop_over(
    ("entry", "told"),
    [
        ({"restart_policy": "sometimes"}, "restart_policy: must be one of: never, on_failure"),
        ({"max_restarts": -1}, "max_restarts: must be between 0"),
        ({"health_interval": "-1s"}, "health_interval: must be a time"),
        ({"health_interval": False}, "health_interval: must be a time"),
        ({"drain_timeout": 0}, "drain_timeout: must be a time"),
        ({"protocol": "old"}, "protocol: must be one of: auto, 2025-11-25, 2026-07-28"),
        ({"mgp": {"restart_policy": "no"}}, "mgp.restart_policy: must be one of"),
        ({"mgp": {"backoff_base_ms": "1s"}}, "mgp.backoff_base_ms: must be a whole number"),
        ({"mgp": {"trust_level": "best"}}, "mgp.trust_level: must be one of: trusted, standard"),
        ({"mgp": {"extensions": "security"}}, "mgp.extensions: must be a list"),
        ({"mgp": {"permissions_required": [""]}}, r"permissions_required\[0\]: must be written as"),
        (
            {"mgp": {"max_restarts": 1}, "max_restarts": 1},
            "mgp.max_restarts: is also set outside of this table",
        ),
    ],
)
def test_a_mistake_in_the_care_is_named(
    tmp_path: Path, entry: dict[str, object], told: str
) -> None:
    with pytest.raises(Misconfigured, match=told):
        one(tmp_path, {"command": "x", **entry})


def test_every_field_is_a_setting_or_a_table_of_settings() -> None:
    for name, table in TABLES.items():
        others = {each.name for each in fields(table)} - fields_of(table).keys()
        top = {"servers", "secret_values", "config_files", *TABLES} - {""}
        assert others == (set() if name else top)


def test_every_default_would_be_accepted_from_a_file(tmp_path: Path) -> None:
    text = ""
    entry = '[[servers]]\nid = "a"\ncommand = "x"\n'
    declared = [(f"[{name}]\n" if name else "", fields_of(each)) for name, each in TABLES.items()]
    for head, table in (*declared, (entry, SERVER_FIELDS)):
        text += head
        for name, setting in table.items():
            value = setting.default
            if isinstance(value, timedelta):
                value = value.total_seconds()
            text += f"{name} = {json.dumps(value)}\n"
    plain = ServerSettings("a", "a", "stdio", command="x", written=WrittenEntry("x"))
    assert from_text(tmp_path, text) == Settings(servers=(plain,))


MGP_SERVER = '[[servers]]\nid = "{0}"\ncommand = "{0}-from-{1}"\n'


class Places:
    """A project's folder and a person's home, both empty at first."""

    def __init__(self, tmp_path: Path) -> None:
        self.cwd = tmp_path / "project"
        self.home = tmp_path / "home"
        self.user = self.home / ".config" / "mgp" / "servers.toml"
        self.own = self.home / ".config" / "comity" / "comity.toml"
        self.own.parent.mkdir(parents=True)
        self.cwd.mkdir()
        self.user.parent.mkdir(parents=True)

    def find(self, **environ: str) -> LoadedConfig:
        return find_config(self.cwd, self.home, environ)

    def write_own(self) -> Path:
        return self.write(
            self.cwd / "comity.toml", MGP_SERVER.format("own", "own") + "[limits]\nmax_depth = 9"
        )

    def write_client(self, name: str) -> Path:
        return self.write(self.cwd / name, '{"mcpServers": {"a": {"command": "x"}}}')

    def write_mgp(self, path: Path, *ids: str) -> Path:
        return self.write(path, "".join(MGP_SERVER.format(each, path.name) for each in ids))

    def write(self, path: Path, text: str) -> Path:
        path.write_text(text, "utf-8")
        return path


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def commands(found: LoadedConfig) -> dict[str, str]:
    return {server.id: server.command for server in found.settings.servers}


def test_the_first_file_that_is_there_is_taken_and_the_others_are_named(places: Places) -> None:
    files = [places.write_own(), places.write_client("mcp.json"), places.write_client(".mcp.json")]
    files += [places.write_mgp(places.cwd / "mgp.toml", "m"), places.write_mgp(places.user, "u")]
    for number, file in enumerate(files[:-1]):
        found = places.find()
        assert found.files[0] == file
        taken = len(found.files)
        assert taken == (2 if file.name == "mgp.toml" else 1)
        assert found.skipped_files == tuple(files[number + taken :])
        watched = ConfigSource(places.cwd, places.home, {}, needs_trust=False).watched_paths
        assert watched == (*files, places.own, Path("/etc/comity/comity.toml"))
        file.unlink()
    assert places.find().files == (places.user,)


def test_the_users_own_file_comes_after_the_folder_and_before_the_shared_one(
    places: Places, tmp_path: Path
) -> None:
    local = places.write_mgp(places.cwd / "mgp.toml", "local")
    shared = places.write_mgp(places.user, "shared")
    own = places.write(places.own, MGP_SERVER.format("own", "own"))
    found = places.find()
    assert (found.files, found.skipped_files) == ((local, shared), (own,))
    local.unlink()
    found = places.find()
    assert (found.files, found.skipped_files) == ((own,), (shared,))
    other = tmp_path / "xdg" / "comity" / "comity.toml"
    other.parent.mkdir(parents=True)
    places.write(other, MGP_SERVER.format("other", "other"))
    assert places.find(XDG_CONFIG_HOME=str(tmp_path / "xdg")).files == (other,)


def test_the_default_store_belongs_to_one_configuration(places: Places, tmp_path: Path) -> None:
    own = places.write_own()
    state = str(tmp_path / "state")
    url = places.find(XDG_STATE_HOME=state).settings.store.url
    assert url.startswith(f"sqlite:///{state}/comity/stores/comity-")
    assert places.find(XDG_STATE_HOME=state).settings.store.url == url
    moved = places.write(tmp_path / "comity.toml", own.read_text("utf-8"))
    other = find_config(places.cwd, places.home, {"XDG_STATE_HOME": state}, moved)
    assert other.settings.store.url not in ("", url)
    assert not (tmp_path / "state").exists()


def test_no_default_store_is_taken_where_one_is_named_or_nodes_share_one(places: Places) -> None:
    places.write_own()
    assert places.find(DATABASE_URL="memory").settings.store.url == ""
    assert places.find(COMITY_STORE_URL="sqlite:///x.db").settings.store.url == "sqlite:///x.db"
    assert places.find(NATS_URL="nats://127.0.0.1:4222").settings.store.url == ""


def test_a_project_stands_over_its_user_server_by_server(places: Places) -> None:
    places.write_mgp(places.cwd / "mgp.toml", "both", "local")
    places.write_mgp(places.user, "Both", "user")
    found = places.find()
    assert commands(found) == {
        "both": "both-from-mgp.toml",
        "local": "local-from-mgp.toml",
        "user": "user-from-servers.toml",
    }
    project, user = found.loaded_files
    assert (project.servers, project.shadowed_servers) == (("both", "local"), ())
    assert (user.servers, user.shadowed_servers) == (("user",), ("Both",))
    assert found.describe() == [
        f"2 servers from {project.path}",
        f"1 server from {user.path} (not Both: in an earlier file too)",
    ]


def test_the_variable_of_mgp_makes_its_file_the_only_one_of_them(
    places: Places, tmp_path: Path
) -> None:
    places.write_mgp(places.cwd / "mgp.toml", "local")
    places.write_mgp(places.user, "user")
    override = places.write_mgp(tmp_path / "else.toml", "override")
    found = places.find(MGP_CONFIG_PATH=str(override))
    assert (found.files, list(commands(found))) == ((override,), ["override"])
    assert list(commands(places.find(MGP_CONFIG_PATH=""))) == ["local", "user"]


def test_the_variable_of_mgp_must_name_a_file_that_is_there(places: Places) -> None:
    places.write_mgp(places.user, "user")
    with pytest.raises(Misconfigured, match=r"gone\.toml: there is no such file"):
        places.find(MGP_CONFIG_PATH=str(places.cwd / "gone.toml"))


def test_our_own_file_comes_before_the_variable_of_mgp(places: Places, tmp_path: Path) -> None:
    own = places.write_own()
    override = places.write_mgp(tmp_path / "else.toml", "override")
    found = places.find(MGP_CONFIG_PATH=str(override))
    assert (found.files, found.skipped_files) == ((own,), (override,))
    assert found.describe()[-1] == f"skipped {override}, because {own} has priority"


def test_a_file_that_is_named_is_the_only_one(places: Places) -> None:
    places.write_own()
    named = places.write_client("other.json")
    found = find_config(places.cwd, places.home, {}, named)
    assert (found.files, found.skipped_files) == ((named,), ())
    assert ConfigSource(places.cwd, places.home, {}, named, needs_trust=False).watched_paths == (
        named,
    )
    with pytest.raises(Misconfigured, match="there is no such file"):
        find_config(places.cwd, places.home, {}, places.cwd / "gone.json")


def test_where_there_is_nothing_it_is_said_what_was_looked_for(places: Places) -> None:
    (places.cwd / "mcp.json").mkdir()
    with pytest.raises(Misconfigured) as problem:
        places.find()
    for name in ("comity.toml", "mcp.json", ".mcp.json", "mgp.toml", "servers.toml", "comity init"):
        assert name in str(problem.value)


def test_default_policies_in_a_file_of_mgp_have_the_names_of_mgp(places: Places) -> None:
    shared = places.cwd / "mgp.toml"
    for written, policy in (("opt-in", "deny"), ("opt-out", "allow")):
        text = MGP_SERVER.format("a", "b") + f'default_policy = "{written}"\n'
        places.write(shared, text)
        assert places.find().settings.servers[0].default_policy == policy
    places.write(shared, MGP_SERVER.format("a", "b") + 'default_policy = "allow"\n')
    with pytest.raises(Misconfigured, match="must be one of: opt-in, opt-out"):
        places.find()


def test_files_that_mgp_shares_may_hold_what_we_do_not_know(places: Places, tmp_path: Path) -> None:
    strange = (
        'theme = "dark"\n' + MGP_SERVER.format("a", "b") + "icon = 1\n[servers.mgp]\nsome_day = 1\n"
    )
    places.write(places.cwd / "mgp.toml", strange)
    assert places.find().settings.servers[0].mgp == {"some_day": 1}
    override = places.write(tmp_path / "x.toml", strange)
    assert list(commands(places.find(MGP_CONFIG_PATH=str(override)))) == ["a"]
    places.write(places.cwd / "comity.toml", strange)
    with pytest.raises(Misconfigured, match="there are 2 mistakes"):
        places.find()


@pytest.mark.parametrize("text", ["", "[[server]]\nid = 1", "x = 1"])
def test_a_file_of_mgp_without_servers_is_a_mistake(places: Places, text: str) -> None:
    places.write(places.cwd / "mgp.toml", text)
    with pytest.raises(Misconfigured, match=r"there are no servers here; write each in \[\[serv"):
        places.find()


def test_the_mistakes_of_all_files_are_told(places: Places) -> None:
    places.write(places.cwd / "mgp.toml", '[[servers]]\nid = "a"\n')
    places.write(places.user, '[[servers]]\nid = "b"\ncommand = "${NO}"\n')
    with pytest.raises(Misconfigured) as problem:
        places.find()
    assert "mgp.toml:1: servers[a]: needs a command" in str(problem.value)
    assert "servers.toml:3: servers[b].command: the variable NO is not set" in str(problem.value)


def test_a_home_that_may_not_be_looked_into_is_as_good_as_empty(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(Misconfigured, match="there is no configuration"):
        places.find()


STORE = '[store]\nurl = "{0}"\npolicy_max_staleness = "5s"\n'


def test_store_address_is_read_with_its_variables_and_never_shown(tmp_path: Path) -> None:
    text = STORE.format("postgresql://me:${PASSWORD}@db.example.org/comity")
    settings = from_text(tmp_path, text, environ={"PASSWORD": "s3cret"})
    assert settings.store.url == "postgresql://me:s3cret@db.example.org/comity"
    assert settings.store.policy_max_staleness == timedelta(seconds=5)
    assert "s3cret" not in repr(settings)


def test_store_address_in_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    text = STORE.format("sqlite:///here.db")
    assert from_text(tmp_path, text).store.url == "sqlite:///here.db"
    environ = {"COMITY_STORE_URL": "sqlite:///there.db"}
    assert from_text(tmp_path, text, environ=environ).store.url == "sqlite:///there.db"
    assert from_text(tmp_path, "").store.url == ""


@loop_over(
    ("url", "environ", "told"),
    [
        ("mysql://s3cret@db/x", {}, "url: must be as sqlite:///comity.db or postgresql://"),
        ("sqlite:here.db", {}, "url: must be as sqlite"),
        ("sqlite:///here.db?mode=ro", {}, "url: must be as sqlite"),
        ("${STORE}", {}, "url: the variable STORE is not set"),
        ("${STORE}", {"STORE": "redis://s3cret"}, "url: must be as sqlite"),
        ("", {"COMITY_STORE_URL": "nats://s3cret"}, "COMITY_STORE_URL: must be as sqlite"),
    ],
)
def test_unknown_store_address_is_refused_and_not_quoted(
    tmp_path: Path, url: str, environ: dict[str, str], told: str
) -> None:
    with pytest.raises(Misconfigured, match=told) as refused:
        from_text(tmp_path, STORE.format(url), environ=environ)
    assert "s3cret" not in str(refused.value)


MODELS = """
[[models]]
id = "main"
api = "openai"
url = "${MODEL_URL}"
model = "${MODEL_NAME:-small}"
"""


def test_model_address_and_name_are_read_from_variables(tmp_path: Path) -> None:
    environ = {"MODEL_URL": "http://127.0.0.1:8080/v1"}
    (model,) = from_text(tmp_path, MODELS, environ=environ).models
    assert (model.url, model.model) == ("http://127.0.0.1:8080/v1", "small")


@loop_over(
    ("environ", "problem"),
    [
        ({}, r"\[\[models\]\] main: url: the variable MODEL_URL is not set; set it"),
        ({"MODEL_URL": "file:///etc/passwd"}, "url: must be written as https://models"),
        ({"MODEL_URL": "http://a/v1", "MODEL_NAME": "two words"}, "model: must be written as a"),
    ],
)
def test_wrong_variable_of_a_model_is_a_mistake(
    tmp_path: Path, environ: dict[str, str], problem: str
) -> None:
    with pytest.raises(Misconfigured, match=problem):
        from_text(tmp_path, MODELS, environ=environ)


NAMES = st.sampled_from(["a", "b", "c", "D"])

SERVERS = st.builds(
    ServerSettings,
    NAMES,
    st.just("label"),
    st.just("stdio"),
    command=st.sampled_from(["x", "y"]),
    env=st.sampled_from([MappingProxyType({"K": "1"}), MappingProxyType({"K": "2"}), {"K": "1"}]),
    disabled=st.booleans(),
    supervision=st.sampled_from([SupervisionSettings(), SupervisionSettings("never")]),
    live=st.sampled_from([{}, {"enabled": ("memory.*",)}]),
)


def settings_of(servers: list[ServerSettings]) -> Settings:
    return Settings(servers=tuple({each.id: each for each in servers}.values()))


SETTINGS = st.lists(SERVERS, max_size=5).map(settings_of)


def enabled(settings: Settings) -> dict[str, ServerSettings]:
    return {server.id: server for server in settings.servers if not server.disabled}


@given(SETTINGS, SETTINGS)
def test_what_is_done_to_the_old_makes_the_new_and_touches_no_other(
    old: Settings, new: Settings
) -> None:
    changes = compare_settings(old, new)
    running = enabled(old)
    for name in changes.removed:
        del running[name]
    for server in changes.changed:
        assert running[server.id] != server
        running[server.id] = server
    for server in changes.policy_changed:
        assert running[server.id] != server
        # The same server, of which something else is decided: it runs on.
        assert replace(running[server.id], live=server.live) == server
        running[server.id] = server
    for server in changes.added:
        assert server.id not in running
        running[server.id] = server
    assert running == enabled(new)


@given(SETTINGS)
def test_nothing_follows_from_the_same(settings: Settings) -> None:
    again = replace(settings, servers=tuple(reversed(settings.servers)))
    assert compare_settings(settings, again) == SettingsChanges()
    assert str(SettingsChanges()) == "no server changed"


def test_what_only_a_restart_can_change_is_named_as_it_is_written() -> None:
    new = Settings(
        port=1,
        limits=LimitSettings(max_depth=9, call_total_timeout=timedelta(1)),
        telemetry=TelemetrySettings(traces=True),
    )
    assert compare_settings(Settings(), new).needs_restart == (
        "port",
        "limits.max_depth",
        "limits.call_total_timeout",
        "telemetry.traces",
    )


def test_the_changes_are_told_in_words() -> None:
    one, two = (ServerSettings(name, name, "stdio", command="x") for name in ("one", "two"))
    assert str(SettingsChanges((one, two), (), ("gone",))) == "added one, two; removed gone"
