"""Servers of an MCP registry: what an entry becomes, what is refused, and the commands."""

import json
import shlex
import threading
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from comity.app.settings import ServerSettings
from comity.app.settings_reader import load_settings
from comity.errors import Misconfigured, Unavailable
from comity.http.client.proxies import NO_PROXIES
from comity.servers.mcp_registry.client import McpRegistryClient, address_problem
from comity.servers.mcp_registry.model import decode_page, decode_server
from comity.servers.mcp_registry.rules import ServerPlan, plan_server
from tests.cli.program import Desk
from tests.support.visitor import visiting

NAME = "io.github.owner/notes"
STDIO = {"type": "stdio"}
DIGEST = "ab" * 32


def document(*packages: dict[str, Any], remotes: Any = (), **more: Any) -> dict[str, Any]:
    server = {"name": NAME, "version": "1.2.0", "description": "Keeps notes.", **more}
    return {"server": {**server, "packages": [*packages], "remotes": [*remotes]}, "_meta": {}}


def package(kind: str = "npm", **more: Any) -> dict[str, Any]:
    said = {"registryType": kind, "identifier": "@owner/notes", "version": "1.2.0"}
    return {**said, "transport": STDIO, **more}


def remote(**more: Any) -> dict[str, Any]:
    return {"type": "streamable-http", "url": "https://notes.example.org/mcp", **more}


def planned(found: dict[str, Any], **chosen: Any) -> ServerPlan:
    return plan_server(decode_server(found, NAME, "latest"), **chosen)


TOKEN = {"name": "NOTES_TOKEN", "isRequired": True, "isSecret": True, "description": "The key."}
LEVEL = {"name": "NOTES_LEVEL", "default": "info"}
# A package or a remote endpoint, and the entry that it becomes.
ENTRIES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (document(package()), {"command": "npx", "args": ["-y", "@owner/notes@1.2.0"]}),
    (
        document(package("pypi", identifier="notes-mcp", version="2.0rc1")),
        {"command": "uvx", "args": ["notes-mcp==2.0rc1"]},
    ),
    (
        document(package("nuget", identifier="Owner.Notes")),
        {"command": "dnx", "args": ["Owner.Notes@1.2.0", "--yes", "--"]},
    ),
    (
        document(
            package(
                "oci",
                identifier=f"ghcr.io/owner/notes:1@sha256:{DIGEST}",
                environmentVariables=[TOKEN],
            )
        ),
        {
            "command": "docker",
            "args": [
                *("run", "-i", "--rm", "-e", "NOTES_TOKEN"),
                f"ghcr.io/owner/notes:1@sha256:{DIGEST}",
            ],
            "env": {"NOTES_TOKEN": "${NOTES_TOKEN}"},
        },
    ),
    (
        document(package("oci", identifier="docker.io/owner/notes", runtimeHint="podman")),
        {"command": "podman", "args": ["run", "-i", "--rm", "docker.io/owner/notes:1.2.0"]},
    ),
    (
        document(
            package(
                runtimeArguments=[{"type": "positional", "value": "-y"}],
                packageArguments=[
                    {"type": "positional", "value": "serve"},
                    {"type": "positional", "valueHint": "folder", "isRequired": True},
                    {"type": "positional", "valueHint": "other"},
                    {"type": "named", "name": "--level", "default": "2"},
                    {"type": "named", "name": "-p", "value": "8"},
                    {"type": "named", "name": "--stdio", "value": ""},
                    {
                        "type": "named",
                        "name": "--dir",
                        "value": "/a/{user}/{x}",
                        "variables": {"user": {"isRequired": True}},
                    },
                ],
                environmentVariables=[
                    TOKEN,
                    LEVEL,
                    {"name": "UNUSED"},
                    {"name": "EXTRA", "isSecret": True},
                ],
            )
        ),
        {
            "command": "npx",
            "args": [
                *("-y", "@owner/notes@1.2.0", "serve", "${NOTES__FOLDER}", "--level=2"),
                *("-p", "8", "--stdio", "--dir=/a/${NOTES__USER}/{x}"),
            ],
            "env": {"NOTES_TOKEN": "${NOTES_TOKEN}", "NOTES_LEVEL": "info", "EXTRA": "${EXTRA:-}"},
        },
    ),
    # No text of the registry can name a variable of this machine, nor be more than one word.
    (
        document(
            package(
                packageArguments=[
                    {"type": "positional", "value": "${HOME}; rm -rf / && $(id) $${A}"}
                ],
                environmentVariables=[{"name": "NOTES_LEVEL", "value": "${AWS_SECRET_ACCESS_KEY}"}],
            )
        ),
        {
            "command": "npx",
            "args": ["-y", "@owner/notes@1.2.0", "$${HOME}; rm -rf / && $(id) $$${A}"],
            "env": {"NOTES_LEVEL": "$${AWS_SECRET_ACCESS_KEY}"},
        },
    ),
    (
        document(
            remotes=[
                remote(
                    headers=[
                        {
                            "name": "Authorization",
                            "value": "Bearer {token}",
                            "variables": {"token": {"isRequired": True, "isSecret": True}},
                        }
                    ]
                )
            ]
        ),
        {
            "url": "https://notes.example.org/mcp",
            "headers": {"Authorization": "Bearer ${NOTES__TOKEN}"},
        },
    ),
    (
        document(
            remotes=[
                remote(
                    type="sse",
                    url="https://{region}.example.org/sse",
                    variables={"region": {"default": "eu"}},
                )
            ]
        ),
        {"url": "https://eu.example.org/sse", "transport": "sse"},
    ),
    # The first usable one counts.
    (
        document(package("mcpb"), package("oci", transport=remote()), package()),
        {"command": "npx", "args": ["-y", "@owner/notes@1.2.0"]},
    ),
]


@pytest.mark.parametrize(("found", "entry"), ENTRIES)
def test_an_entry_has_one_version_and_its_secrets_as_variables(
    found: dict[str, Any], entry: dict[str, Any], tmp_path: Path
) -> None:
    plan = planned(found)
    assert plan.id == "notes"
    assert plan.entry == entry
    # The configuration reads exactly the texts of the registry.
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"notes": entry}}), encoding="utf-8")
    variables = {each.name: "given" for each in plan.needs}
    (server,) = load_settings(
        path, {**variables, "HOME": "/h", "AWS_SECRET_ACCESS_KEY": "s"}
    ).servers
    assert "/h" not in str(server.args)
    assert "s" not in server.env.values()


def test_a_digest_is_shown_and_an_image_without_one_is_noted() -> None:
    for kind, runner in (("npm", "npx"), ("pypi", "uvx"), ("nuget", "dnx")):
        found = planned(document(package(kind, identifier="notes", fileSha256=DIGEST)))
        assert found.digest == f"sha256:{DIGEST}"
        assert found.notes == (f"the digest is only shown: {runner} does not compare it",)
    image = f"ghcr.io/owner/notes@sha256:{DIGEST}"
    assert planned(document(package("oci", identifier=image))).digest == f"sha256:{DIGEST}"
    open_image = planned(document(package("oci", identifier="ghcr.io/owner/notes:1")))
    assert open_image.notes == ("the image has no digest, so its owner can replace it",)


PRIVILEGED = {"type": "named", "name": "--privileged", "value": ""}
# An entry of a hostile registry, and why it is refused.
REFUSED: list[tuple[dict[str, Any], str]] = [
    (document(), "no package and no remote endpoint"),
    (document(package(identifier="--eval=x")), "no name of a package"),
    (document(package(identifier="a b")), "no name of a package"),
    (document(package(identifier="notes@1.0.0/../x")), "no name of a package"),
    (document(package("pypi", identifier="notes @ https://evil.example")), "no name"),
    (document(package(version="latest")), "no single version"),
    (document(package(version="^1.2.0")), "no single version"),
    (document(package(version="1.0 || 2")), "no single version"),
    (document(package(version="")), "no single version"),
    (document(package(registryBaseUrl="https://evil.example")), "comes from"),
    (document(package("mcpb", fileSha256=DIGEST)), "does not run MCPB"),
    (document(package("gem")), "unknown"),
    (document(package("oci", identifier="-v/:/host")), "no whole image name"),
    (document(package("oci", identifier="notes:1")), "no whole image name"),
    (document(package("oci", identifier=f"ghcr.io/a/b@sha256:{'z' * 64}")), "no whole image"),
    (
        document(package("oci", identifier="ghcr.io/a/b:1", runtimeArguments=[PRIVILEGED])),
        "--privileged.*--allow-runtime-arguments",
    ),
    *(
        (
            document(package(environmentVariables=[{"name": name, "value": "x"}])),
            "changes the program",
        )
        for name in (
            "PATH",
            "LD_PRELOAD",
            "NODE_OPTIONS",
            "DOCKER_HOST",
            "PYTHONPATH",
            "npm_config_x",
        )
    ),
    (document(package(environmentVariables=[{"name": "A=B", "value": "x"}])), "the name 'A=B'"),
    (document(package(packageArguments=[{"type": "named", "name": "a b"}])), "the name 'a b'"),
    (
        document(package(packageArguments=[{"type": "positional", "value": "a\nb"}])),
        "control characters",
    ),
    (
        document(package(packageArguments=[{"type": "positional", "value": "x" * 2000}] * 20)),
        "too long",
    ),
    (document(remotes=[remote(type="ftp")]), "transport 'ftp' is unknown"),
    (document(remotes=[remote(url="http://notes.example.org/mcp")]), "not https"),
    (document(remotes=[remote(url="https://user:pw@notes.example.org/")]), "no credentials"),
    (document(remotes=[remote(url="https://10.0.0.8/mcp")]), "refused"),
    (document(remotes=[remote(url="https://169.254.169.254/latest")]), "refused"),
    (document(remotes=[remote(url="https://localhost/mcp")]), "refused"),
    (document(remotes=[remote(url="https://[::ffff:127.0.0.1]/mcp")]), "refused"),
    (document(remotes=[remote(url="https://{host}/mcp")]), "needs a value for host"),
    (document(remotes=[remote(url="https://x.example.org/${HOME}")]), "needs a value for HOME"),
    (document(remotes=[remote(headers=[{"name": "X\r\nY", "value": "z"}])]), "the name"),
]


@pytest.mark.parametrize(("found", "reason"), REFUSED)
def test_a_hostile_entry_is_refused(found: dict[str, Any], reason: str) -> None:
    with pytest.raises(Misconfigured, match=reason):
        planned(found)


# Each joins `$` and `{NAME}` from two texts of the registry.
JOINED: list[tuple[str, dict[str, Any], str]] = [
    ("${v}", {"value": "{AWS_SECRET_ACCESS_KEY}"}, "$${AWS_SECRET_ACCESS_KEY}"),
    ("a-${v}", {"default": "{secret:DB}"}, "a-$${secret:DB}"),
    ("{v}{AWS_SECRET_ACCESS_KEY}", {"value": "$"}, "$${AWS_SECRET_ACCESS_KEY}"),
    ("{v}secret:DB}", {"value": "${"}, "$${secret:DB}"),
    ("{v}{v}{HOME:-x}", {"value": "$"}, "$$${HOME:-x}"),
]


@pytest.mark.parametrize(("text", "variable", "written"), JOINED)
def test_texts_of_a_registry_do_not_join_to_a_variable_of_the_gateway(
    text: str, variable: dict[str, Any], written: str
) -> None:
    given = {"value": text, "variables": {"v": variable}}
    entries = [
        planned(document(remotes=[remote(headers=[{"name": "X-Trace", **given}])])),
        planned(document(package(packageArguments=[{"type": "positional", **given}]))),
        planned(document(package(environmentVariables=[{"name": "NOTES_TRACE", **given}]))),
    ]
    header, argument, variable_text = (each.entry for each in entries)
    assert header["headers"] == {"X-Trace": written}
    assert argument["args"][-1] == written
    assert variable_text["env"] == {"NOTES_TRACE": written}
    assert [each.needs for each in entries] == [()] * 3


@pytest.mark.parametrize("text", ["${v}", "$${v}", "${A:-{v}}", "{v}${v}"])
def test_a_text_that_the_configuration_cannot_write_is_refused(text: str) -> None:
    given = {"value": text, "variables": {"v": {"isRequired": True, "isSecret": True}}}
    with pytest.raises(Misconfigured, match="the configuration cannot write"):
        planned(document(remotes=[remote(headers=[{"name": "X-Trace", **given}])]))


# Variables that swap the package, send its download through a proxy or load code into its runner.
RUNNER_VARIABLES = shlex.split("""
HTTPS_PROXY https_proxy HTTP_PROXY ALL_PROXY NO_PROXY NODE_TLS_REJECT_UNAUTHORIZED
NODE_EXTRA_CA_CERTS NODE_REDIRECT_WARNINGS NODE_V8_COVERAGE NODE_REPL_EXTERNAL_MODULE
NODE_COMPILE_CACHE NODE_ICU_DATA OPENSSL_CONF OPENSSL_MODULES REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
GCONV_PATH LOCPATH GLIBC_TUNABLES LD_PRELOAD LD_AUDIT NODE_OPTIONS npm_config_registry
NPM_CONFIG_REGISTRY npm_execpath npm_node_execpath UV_INDEX_URL UV_PYTHON PIP_INDEX_URL PYTHONPATH
PYTHONSTARTUP VIRTUAL_ENV CORECLR_ENABLE_PROFILING CORECLR_PROFILER_PATH COMPlus_ReadyToRun
MSBUILD_EXE_PATH MSBuildSDKsPath JDK_JAVA_OPTIONS _JAVA_OPTIONS RUBYOPT PERL5OPT
BUN_CONFIG_REGISTRY DENO_DIR TMPDIR TEMP ELECTRON_RUN_AS_NODE SHELLOPTS PS4 EDITOR NETRC ALL_proxy
RES_OPTIONS HOSTALIASES KRB5_CONFIG REGISTRY_AUTH_FILE TAR_OPTIONS XDG_CONFIG_HOME HOME PATH
INIT_CWD npm_package_config_x YARN_REGISTRY COREPACK_NPM_REGISTRY COREPACK_INTEGRITY_KEYS
NVM_NODEJS_ORG_MIRROR
""")


def test_an_entry_gives_no_text_to_a_variable_of_a_runner_or_a_proxy() -> None:
    assert len(RUNNER_VARIABLES) == 65
    for name in RUNNER_VARIABLES:
        for given in ({"value": "x"}, {"default": "x"}, MIXED):
            with pytest.raises(Misconfigured, match=name):
                planned(document(package(environmentVariables=[{"name": name, **given}])))


MIXED = {"value": "x{v}", "variables": {"v": {"isRequired": True}}}


def test_a_person_allows_a_variable_by_its_name() -> None:
    given = [{"name": "LOG_LEVEL", "value": "warn"}, {"name": "A", **MIXED}, TOKEN]
    found = document(package(environmentVariables=given))
    with pytest.raises(Misconfigured, match=r"LOG_LEVEL = 'warn'.*--allow-variable LOG_LEVEL"):
        planned(found, variables=["A"])
    plan = planned(found, variables=["A", "LOG_LEVEL"])
    assert plan.entry["env"] == {
        "LOG_LEVEL": "warn",
        "A": "x${NOTES__V}",
        "NOTES_TOKEN": "${NOTES_TOKEN}",
    }
    # What changes the runner cannot be allowed.
    for name in ("HTTPS_PROXY", "NODE_TLS_REJECT_UNAUTHORIZED", "OPENSSL_CONF", "LD_PRELOAD"):
        with pytest.raises(Misconfigured, match="changes the program"):
            planned(
                document(package(environmentVariables=[{"name": name, "value": "x"}])),
                variables=[name],
            )


def test_a_header_asks_for_no_variable_that_a_machine_has_already() -> None:
    header = {"name": "Secret-Access-Key", "isRequired": True, "isSecret": True}
    plan = planned(document(remotes=[remote(headers=[header])]), id="aws")
    assert plan.entry["headers"] == {"Secret-Access-Key": "${AWS__SECRET_ACCESS_KEY}"}


def test_runtime_arguments_are_taken_if_the_user_allows_them() -> None:
    image = package("oci", identifier="ghcr.io/a/b:1", runtimeArguments=[PRIVILEGED])
    plan = planned(document(image), with_runtime_arguments=True)
    assert plan.entry["args"] == ["run", "-i", "--rm", "--privileged", "ghcr.io/a/b:1"]
    chosen = planned(document(package(), remotes=[remote()]), source="remote")
    assert chosen.entry == {"url": "https://notes.example.org/mcp"}


# Answers that are no server, or another one.
MALFORMED: list[dict[str, Any]] = [
    {},
    {"server": []},
    document(name="io.github.other/notes"),
    document(name="io.github.owner/notes\n"),
    document(name=7),
    document(version="1.0\n"),
    document(version={"a": 1}),
    document(version="x" * 200),
    document(description="x" * 3000),
    document(package(fileSha256="short")),
    document(package(packageArguments=[{"type": "other"}])),
    document(*([package()] * 65)),
    document(package(environmentVariables=[{"name": 3}])),
]


@pytest.mark.parametrize("found", MALFORMED)
def test_a_malformed_answer_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="the registry sent"):
        decode_server(found, NAME, "latest")


def test_a_page_leaves_malformed_servers_out() -> None:
    page = {"servers": [document(), {"server": 3}, {}], "metadata": {"nextCursor": "c"}}
    servers, cursor = decode_page(page)
    assert ([each.name for each in servers], cursor) == ([NAME], "c")
    assert decode_page({"servers": None}) == ([], "")
    refused: list[dict[str, Any]] = [{"servers": "x"}, {"servers": [{}] * 101}, {"metadata": []}]
    for hostile in refused:
        with pytest.raises(Misconfigured, match="malformed"):
            decode_page(hostile)


async def test_a_name_with_a_private_address_is_refused() -> None:
    problem = await address_problem("https://localhost.localdomain/mcp")
    assert problem is not None
    assert await address_problem("https://8.8.8.8/mcp") is None


class StubRegistry:
    """A registry over HTTP with documents by name and version."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.pages: list[dict[str, Any]] = []

    def put(self, found: dict[str, Any], version: str = "latest") -> None:
        path = f"/v0.1/servers/{found['server']['name']}/versions/{version}"
        self.answers[path] = (200, json.dumps(found).encode())

    def answer(self, target: str) -> tuple[int, bytes]:
        self.asked.append(target)
        parts = urlsplit(target)
        if parts.path == "/v0.1/servers":
            number = int(parse_qs(parts.query).get("cursor", ["0"])[0])
            return 200, json.dumps(self.pages[number]).encode()
        return self.answers.get(unquote(parts.path), (404, b'{"error": "no"}'))


@contextmanager
def serving_registry() -> Generator[StubRegistry]:
    registry = StubRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = registry.answer(self.path)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: object = None, size: object = None) -> None:
            del code, size

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def registry() -> Generator[StubRegistry]:
    with serving_registry() as started:
        yield started


HOSTILE_ANSWERS = [
    (200, b"x" * 300_000, "did not return"),
    (200, b'{"server":' + b"[" * 100_000, "did not return"),
    (200, b"<html>", "did not return"),
    (200, b"[]", "did not return"),
    (500, b"", "status 500"),
    (302, b"", "status 302"),
]


async def test_a_hostile_answer_is_bounded_and_refused(registry: StubRegistry) -> None:
    client = McpRegistryClient(registry.url, NO_PROXIES)
    for status, body, reason in HOSTILE_ANSWERS:
        registry.answers[f"/v0.1/servers/{NAME}/versions/latest"] = (status, body)
        with pytest.raises(Unavailable, match=reason):
            await client.get(NAME)
    with pytest.raises(Misconfigured, match=r"has no io\.github\.owner/gone"):
        await client.get("io.github.owner/gone")


async def test_a_registry_with_endless_pages_keeps_nobody_busy(registry: StubRegistry) -> None:
    registry.pages = [{"servers": [], "metadata": {"nextCursor": "0"}}]
    assert await McpRegistryClient(registry.url, NO_PROXIES).search("x", 20) == []
    assert len(registry.asked) == 2


async def test_the_list_of_a_gateway_can_be_read_as_a_registry() -> None:
    servers = [
        ServerSettings(f"s{number:02}", f"Server {number}", "http", url="http://127.0.0.1:9/mcp")
        for number in range(35)
    ]
    async with visiting(*servers) as visitor:
        client = McpRegistryClient(visitor.place.address, NO_PROXIES)
        found = await client.search("", 40)
        assert [each.name for each in found] == [f"localhost/s{n:02}" for n in range(35)]
        one = await client.get("localhost/s07")
    assert one.remotes[0].url == f"{visitor.place.address}/servers/s07/mcp"
    assert one == found[7]


def test_a_server_is_found_and_added_with_its_secrets_as_variables(
    registry: StubRegistry, tmp_path: Path
) -> None:
    desk = Desk(tmp_path)
    path = desk.write("comity.toml", f'# mine\n[registry]\nsource_url = "{registry.url}"\n')
    texts = [{"name": "LOG_LEVEL", "value": "a text"}, TOKEN]
    registry.put(document(package(environmentVariables=texts, fileSha256=DIGEST)))
    registry.put(document(package(), version="1.1.0"), "1.1.0")
    registry.pages = [
        {"servers": [document(package(), remotes=[remote()])], "metadata": {"nextCursor": "1"}},
        {"servers": [document(name="io.github.owner/\u001b[31mred")]},
    ]
    found = desk.run("servers", "search", "notes", "-o", "json")
    assert found.json["servers"] == [
        {
            "name": NAME,
            "version": "1.2.0",
            "description": "Keeps notes.",
            "sources": ["npm", "remote"],
        }
    ]
    assert "search=notes" in registry.asked[0]
    before = path.read_text()
    refused = desk.run("servers", "add", NAME, "--dry-run")
    assert (refused.status, "--allow-variable LOG_LEVEL" in refused.err) == (2, True)
    allowed = (NAME, "--allow-variable", "LOG_LEVEL")
    tried = desk.run("servers", "add", *allowed, "--dry-run")
    assert tried.status == 0
    for words in (
        "LOG_LEVEL = 'a text'",
        "NOTES_TOKEN = ${NOTES_TOKEN}",
        "npx -y @owner/notes@1.2.0",
        DIGEST,
        "NOTES_TOKEN",
        "Nothing was written",
    ):
        assert words in tried.out
    assert path.read_text() == before

    done = desk.run("servers", "add", *allowed)
    assert done.status == 0, done.err
    assert "Set before the gateway starts: NOTES_TOKEN." in done.out
    text = path.read_text()
    assert text.startswith(before)
    assert f"# {NAME} 1.2.0 of {registry.url.removeprefix('http://')} sha256:{DIGEST}" in text
    (server,) = tomllib.loads(text)["servers"]
    environment = {"LOG_LEVEL": "a text", "NOTES_TOKEN": "${NOTES_TOKEN}"}
    arguments = ["-y", "@owner/notes@1.2.0"]
    assert server == {"id": "notes", "command": "npx", "args": arguments, "env": environment}
    # The same once more changes nothing, and another version is another server.
    assert "has this server already" in desk.run("servers", "add", *allowed).out
    other = desk.run("servers", "add", f"{NAME}@1.1.0", "--id", "old", "-o", "json")
    assert (other.json["id"], other.json["added"]) == ("old", True)
    assert set(other.json) == {
        *("name", "version", "id", "source", "entry"),
        *("digest", "needs", "notes", "file", "added"),
    }
    assert [each["id"] for each in tomllib.loads(path.read_text())["servers"]] == ["notes", "old"]
    assert desk.run("config", "check", NOTES_TOKEN="t").status == 0


def test_add_says_why_it_adds_nothing(registry: StubRegistry, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    nothing = desk.run("servers", "add", NAME)
    assert (nothing.status, "comity init" in nothing.err) == (2, True)
    path = desk.write("mcp.json", {"mcpServers": {}})
    environ = {"COMITY_REGISTRY_SOURCE_URL": registry.url}
    registry.put(document(remotes=[remote(url="https://192.168.1.1/mcp")]))
    for name, reason in (
        ("notes", "is no server of a registry"),
        ("../../etc/passwd", "is no server of a registry"),
        (f"{NAME}@9", "has no io.github.owner/notes in the version 9"),
        (NAME, "its url is refused"),
    ):
        refused = desk.run("servers", "add", name, **environ)
        assert refused.status != 0
        assert reason in refused.err
    assert json.loads(path.read_text()) == {"mcpServers": {}}
    registry.put(document(package()))
    assert desk.run("servers", "add", NAME, **environ).status == 0
    assert json.loads(path.read_text())["mcpServers"]["notes"]["command"] == "npx"
