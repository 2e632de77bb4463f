"""`${secret:NAME}` in a configuration: from each source, missing, and hidden afterwards."""

import asyncio
import json
import logging
from collections.abc import Generator
from pathlib import Path

import keyring
import pytest

from comity.app.reload import follow_settings
from comity.app.settings_reader import ConfigSource, load_settings
from comity.app.settings_view import settings_view
from comity.audit.wiring import known_secrets
from comity.cli.main import main
from comity.errors import Misconfigured
from comity.redaction.redact import Redactor
from tests.secrets.clouds import SECRET, SOURCES, Clouds, running_clouds
from tests.secrets.test_providers import OneKeyring
from tests.support.visitor import visiting

CONFIG = """
[secrets]
sources = {sources}

[store]
url = "postgresql://comity:${{secret:DB_PASSWORD}}@db.example.org/comity"

[[models]]
id = "large"
api = "openai"
model = "gpt"
url = "https://models.example.org/${{secret:DB_PASSWORD}}"

[[servers]]
id = "files"
command = "files-server"
args = ["--token=${{secret:DB_PASSWORD}}"]
env = {{ PLAIN = "$${{secret:DB_PASSWORD}}" }}

[[servers]]
id = "remote"
url = "https://mcp.example.org/mcp"
headers = {{ X-Odd-Name = "${{secret:DB_PASSWORD}}" }}
"""


@pytest.fixture(scope="module")
def shared_clouds() -> Generator[Clouds]:
    with running_clouds() as clouds:
        yield clouds


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "comity.toml"


def put(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


def write(config: Path, *sources: str) -> None:
    put(config, CONFIG.format(sources=json.dumps(sources)))


@pytest.mark.parametrize("kind", [*SOURCES, "file", "env", "keyring"])
def test_a_secret_of_each_source_is_used_and_shown_nowhere(
    kind: str, shared_clouds: Clouds, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = shared_clouds.environ(config.parent)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    folder = config.parent / "folder"
    folder.mkdir()
    (folder / "DB_PASSWORD").write_text(f"{SECRET}\n")
    (folder / "DB_PASSWORD").chmod(0o600)
    before = keyring.get_keyring()
    keyring.set_keyring(OneKeyring())
    local = {"file": f"file:{folder}", "env": "env", "keyring": "keyring:comity"}
    write(config, SOURCES[kind](shared_clouds) if kind in SOURCES else local[kind])
    environ |= {"DB_PASSWORD": SECRET} if kind == "env" else {}
    try:
        settings = load_settings(config, environ)
    finally:
        keyring.set_keyring(before)
    assert settings.servers[0].args == (f"--token={SECRET}",)
    assert settings.servers[0].env == {"PLAIN": "${secret:DB_PASSWORD}"}
    assert settings.servers[1].headers == {"X-Odd-Name": SECRET}
    assert SECRET in settings.store.url
    for shown in (repr(settings), str(settings_view(settings, of_all=True))):
        assert SECRET not in shown
    redactor = Redactor(known_secrets(settings, b"p" * 32), b"k")
    for text in (SECRET, f"argument --token={SECRET} failed", json.dumps({"any": SECRET})):
        assert SECRET not in redactor.redact_text(text)


def test_one_request_reads_a_secret_that_stands_in_several_places(
    shared_clouds: Clouds, config: Path
) -> None:
    write(config, "vault:secret/comity")
    before = len(shared_clouds.calls)
    load_settings(config, shared_clouds.environ(config.parent))
    assert len(shared_clouds.calls) == before + 1


def test_a_secret_that_no_source_has_is_named_and_nothing_else_is(config: Path) -> None:
    write(config, "env", f"file:{config.parent}")
    with pytest.raises(Misconfigured) as failed:
        load_settings(config, {"OTHER": SECRET})
    text = str(failed.value)
    assert "there is no secret DB_PASSWORD; add it to one of the `sources` in [secrets]" in text
    assert "servers[files].args" in text
    assert SECRET not in text


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("${secret:}", "that is no variable"),
        ("${secret:../../etc/passwd}", "that is no variable"),
        ("${secret:a b}", "that is no variable"),
        ("${secret:.hidden}", "there is no secret .hidden"),
        ("${secret:..}", "there is no secret .."),
    ],
)
def test_a_name_reaches_no_file_outside_of_its_folder(
    written: str, problem: str, config: Path
) -> None:
    (config.parent / ".hidden").write_text("x")
    config.write_text(
        f'[secrets]\nsources = ["file:{config.parent}"]\n'
        f'[[servers]]\nid = "a"\ncommand = "b"\nargs = ["{written}"]\n'
    )
    with pytest.raises(Misconfigured, match=problem.replace(".", r"\.")):
        load_settings(config, {})


def test_a_file_that_others_can_read_holds_no_secret(config: Path) -> None:
    (config.parent / "DB_PASSWORD").write_text(SECRET)
    (config.parent / "DB_PASSWORD").chmod(0o644)
    write(config, f"file:{config.parent}")
    with pytest.raises(Misconfigured, match="chmod 600") as failed:
        load_settings(config, {})
    assert SECRET not in str(failed.value)


def test_a_variable_names_the_sources_of_any_configuration(config: Path) -> None:
    """A file of an MCP client has no table of Comity."""
    file = config.with_name("mcp.json")
    entry = {"command": "x", "env": {"TOKEN": "${secret:DB_PASSWORD}"}}
    file.write_text(json.dumps({"mcpServers": {"a": entry}}))
    (config.parent / "DB_PASSWORD").write_text(SECRET)
    (config.parent / "DB_PASSWORD").chmod(0o600)
    environ = {"COMITY_SECRETS_SOURCES": f"file:{config.parent}"}
    assert load_settings(file, environ).servers[0].env == {"TOKEN": SECRET}
    environ = {"COMITY_SECRETS_SOURCES": "ftp:nowhere"}
    with pytest.raises(Misconfigured, match=r"COMITY_SECRETS_SOURCES: .* must be written as"):
        load_settings(file, {**environ, "DB_PASSWORD": SECRET})


def test_commands_show_no_secret_of_the_configuration(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(config, "env")
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    caplog.set_level(logging.DEBUG)
    for command in (["show", "--all"], ["show", "-o", "json"], ["path"]):
        assert main(["config", *command, "-c", str(config)]) == 0
    said = capsys.readouterr()
    assert "secrets.sources" in said.out
    assert SECRET not in said.out + said.err + caplog.text


def test_the_files_of_a_configuration_are_known_without_a_secret(config: Path) -> None:
    """The console asks for them, and must not wait for Vault each time."""
    write(config, "vault:secret/comity")
    source = ConfigSource(config.parent, config.parent, {}, config, needs_trust=False)
    assert source.existing_paths == (config,)


async def test_a_secret_of_a_changed_configuration_is_hidden_before_it_is_used(
    config: Path,
) -> None:
    folder = config.parent / "folder"
    folder.mkdir()
    put(folder / "ROTATED", SECRET)
    put(config, "port = 0\n")
    source = ConfigSource(config.parent, config.parent, {}, config, needs_trust=False)
    async with visiting() as visitor:
        parts, redactor = visitor.parts, visitor.parts.audit_log_components.redactor
        assert SECRET in redactor.redact_text(f"the value is {SECRET}")
        async with follow_settings(
            source,
            source.load(),
            parts.config_state,
            parts.upstream_registry,
            lambda _: None,
        ):
            put(
                config,
                f'port = 0\n[secrets]\nsources = ["file:{folder}"]\n[[servers]]\nid = "late"\n'
                'command = "/nowhere/${secret:ROTATED}"\nargs = ["${secret:ROTATED}"]\n',
            )
            async with asyncio.timeout(30):
                while not any(each.name == "late" for each in parts.servers):
                    await asyncio.sleep(0.05)
        assert SECRET not in redactor.redact_text(f"the value is {SECRET}")
        reply = await visitor.send("GET", path="/api/config")
        assert SECRET not in (await reply.body()).decode()
