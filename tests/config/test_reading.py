"""What a configuration file may say, and how each mistake in it is told of."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.config import Settings, derived_id
from comity.wire.errors import Misconfigured
from tests.config.writing import from_json, from_text, one


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
    assert (search.sharing, search.disabled, search.cwd) == ("shared", False, None)
    assert settings.port == 2664


def test_the_servers_key_of_editors_is_the_same(tmp_path: Path) -> None:
    document = {"servers": {"a": {"type": "stdio", "command": "x"}}, "inputs": [1]}
    assert from_json(tmp_path, document).servers[0].command == "x"


@pytest.mark.parametrize(
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


def test_a_disabled_server_is_kept_as_disabled(tmp_path: Path) -> None:
    assert one(tmp_path, {"command": "x", "disabled": True}).disabled


def test_nulls_are_as_good_as_absent(tmp_path: Path) -> None:
    server = one(tmp_path, {"command": "x", "args": None, "env": None, "url": None, "cwd": None})
    assert (server.args, dict(server.env), server.cwd) == ((), {}, None)


TOML = """
host = "0.0.0.0"
port = 0
allowed_hosts = ["gateway.example.org", "[2001:db8::1]"]
allowed_origins = ["https://app.example.org"]

[limits]
frame_bytes = 65536
call_deadline = "2m"
idle_session = 90

[[servers]]
id = "sea.almanac"
command = "python"
args = ["server.py"]
transport = "stdio"
sharing = "session"

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
    assert (settings.frame_bytes, settings.depth) == (65536, 64)
    assert settings.call_deadline == timedelta(minutes=2)
    assert settings.idle_session == timedelta(seconds=90)
    assert (mind.id, mind.sharing, mind.env["KEY"]) == ("sea.almanac", "session", "k")
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(("first", "second"), [("a b", "a-b"), ("Files", "files")])
def test_two_servers_with_one_id_are_refused(tmp_path: Path, first: str, second: str) -> None:
    servers = {first: {"command": "x"}, second: {"command": "y"}}
    with pytest.raises(Misconfigured, match=f"'{first}' and '{second}' would share the id"):
        from_json(tmp_path, {"mcpServers": servers})


@pytest.mark.parametrize(
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
        ({"command": "x", "sharing": "all"}, "one of: shared, session"),
        ({"command": "x", "disabled": "yes"}, "true or false"),
    ],
)
def test_a_server_that_cannot_be_is_refused(tmp_path: Path, entry: object, told: str) -> None:
    with pytest.raises(Misconfigured, match=rf"mcp\.json:1: mcpServers\.it.*{told}"):
        one(tmp_path, entry)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot = 1", "comity.toml:1: prot: there is no such key; did you mean 'port'"),
        ("[limits]\ndeepth = 1", "limits.deepth: .*did you mean 'depth'"),
        ("[limits]\nport = 1", "limits.port: there is no such key"),
        ('[[servers]]\nid = "a"\ncomand = "x"', r"servers\[a\].comand: .*did you mean 'command'"),
        ('[[servers]]\ncommand = "x"', r"servers\[0\]: needs an id"),
        ('[[servers]]\nid = 1\ncommand = "x"', r"servers\[0\].id: must be a text"),
        ('[[servers]]\nid = "a__b"\ncommand = "x"', "hold no __"),
        ('[[servers]]\nid = "a_"\ncommand = "x"', "do not end with _"),
        ('[[servers]]\nid = "a/b"\ncommand = "x"', "must be 1 to 64"),
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
        ("[limits]\nkeep_alive = nan", "limits.keep_alive: must be a time"),
        ("port = 1\nport = 2\n", ":2: is not TOML: Cannot overwrite a value, at column 9"),
        ("[", "is not TOML"),
    ],
)
def test_a_mistake_in_comity_toml_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, text)


def test_the_given_environment_sets_host_and_port_over_the_file(tmp_path: Path) -> None:
    environ = {"COMITY_HOST": "::1", "COMITY_PORT": "81", "HOST": "no", "PORT": "7"}
    settings = from_text(tmp_path, "port = 80", environ=environ)
    assert (settings.host, settings.port) == ("::1", 81)
    for wrong in ("x", "-1", "99999", "9" * 5000):
        with pytest.raises(Misconfigured, match="COMITY_PORT: must be"):
            from_text(tmp_path, "", environ={"COMITY_PORT": wrong})


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


@pytest.mark.parametrize(
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


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    server = one(tmp_path, {"command": "x", "env": {"A": "1"}})
    with pytest.raises(AttributeError):
        server.command = "y"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        server.env["A"] = "2"  # pyright: ignore[reportIndexIssue]


WRONG_TOML = """\
prot = 80
host = 1

[limits]
call_deadline = "5 minutes"

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
        ["5", "limits.call_deadline"],
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
        "mcp.json:9: mcpServers.c.command: an ${input:...} is asked for by an editor",
        "mcp.json:10: mcpServers.d: must be a table",
    ):
        assert expected in told


def test_of_very_many_mistakes_the_first_are_told(tmp_path: Path) -> None:
    entries = {f"s{number}": {"command": "${NO}"} for number in range(50)}
    with pytest.raises(Misconfigured) as problem:
        from_json(tmp_path, {"mcpServers": entries})
    lines = str(problem.value).splitlines()
    assert (len(lines), lines[-1]) == (22, "  and 30 more")
