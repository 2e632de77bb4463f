"""Contexts, the order in which a gateway is found, and what a command imports."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from comity.cli.contexts import contexts_path
from comity.cli.options import CliOptions
from comity.cli.output import to_yaml
from comity.cli.target import DEFAULT_URL, find_target
from comity.config.trust import content_digest, trust_file
from comity.errors import Misconfigured
from tests.cli.program import SECONDS, Desk
from tests.support.cases import loop_over

PROD = "https://gw.example.org"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "COMITY_URL", "COMITY_CONTEXT", "COMITY_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(current: str = "", **contexts: str) -> None:
    lines = [f'current = "{current}"'] if current else []
    for name, url in contexts.items():
        lines += [f"[contexts.{name}]", f'url = "{url}"', f'key_file = "{name}.key"']
    path = contexts_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
    path.chmod(0o600)


def test_contexts_are_added_used_and_removed(desk: Desk) -> None:
    assert "no contexts" in desk.run("context").out
    (desk.folder / "prod.key").write_text("a-key")
    added = desk.run("context", "add", "prod", "--url", f"{PROD}/mcp", "--key-file", "prod.key")
    assert added.status == 0, added.err
    file = desk.home / ".config" / "comity" / "contexts.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "a-key" not in file.read_text()
    assert desk.run("context", "add", "local", "--url", "127.0.0.1:9").status == 0
    assert desk.run("context", "use", "local").status == 0
    (local, prod) = desk.run("context", "list", "-o", "json").json["contexts"]
    assert (local["url"], local["is_current"]) == ("http://127.0.0.1:9", True)
    assert (prod["url"], prod["key_file"]) == (PROD, str(desk.folder / "prod.key"))
    away = desk.run("status")
    assert (away.status, "http://127.0.0.1:9" in away.err) == (3, True)
    assert desk.run("context", "list", "-o", "name").lines == ["local", "prod"]
    assert desk.run("context", "remove", "local").status == 0
    default = desk.run("status")
    assert DEFAULT_URL in default.out + default.err
    for words in (("use", "prodd"), ("remove", "none"), ("add", "a b", "--url", PROD)):
        assert desk.run("context", *words).status == 2
    assert "Did you mean 'prod'?" in desk.run("status", "--context", "prodd").err


def test_the_first_that_names_a_gateway_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(prod=PROD, test="https://test.example.org")
    assert find_target(CliOptions()).url == DEFAULT_URL
    write("prod", prod=PROD, test="https://test.example.org")
    assert find_target(CliOptions()).url == PROD
    (folder / "mcp.json").write_text("{}")
    assert find_target(CliOptions()).url == PROD, "a client's file names no gateway"
    (folder / "comity.toml").write_text("port = 2801\n")
    assert find_target(CliOptions()).url == DEFAULT_URL, "a stranger's file gets no key"
    trust_file(folder / "comity.toml", content_digest(b"port = 2801\n"))
    assert find_target(CliOptions()).url == "http://127.0.0.1:2801"
    monkeypatch.setenv("COMITY_CONTEXT", "test")
    assert find_target(CliOptions()).url == "https://test.example.org"
    monkeypatch.setenv("COMITY_URL", "http://127.0.0.1:7")
    assert find_target(CliOptions()).url == "http://127.0.0.1:7"
    (folder / "other.toml").write_text("port = 2802\n")
    named = CliOptions(config=Path("other.toml"))
    assert find_target(named).url == "http://127.0.0.1:2802"
    assert find_target(CliOptions(context="prod")).url == PROD
    assert find_target(CliOptions(context="prod", url="http://x:1")).url == "http://x:1"


def test_the_key_of_one_gateway_is_not_sent_to_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("prod", prod=PROD)
    monkeypatch.setenv("COMITY_KEY_FILE", str(folder / "other.key"))
    assert find_target(CliOptions()).key_file == Path("prod.key")
    assert find_target(CliOptions(url=PROD)).key_file == folder / "other.key"
    assert find_target(CliOptions(key_file=Path("x.key"))).key_file == Path("x.key")


@loop_over("text", ["current = 1", "contexts = 1", "[contexts.a]\nurl = 1", "x = "])
def test_a_file_of_contexts_that_is_not_valid_is_explained(folder: Path, text: str) -> None:
    write()
    contexts_path().write_text(text)
    with pytest.raises(Misconfigured, match=r"contexts\.toml"):
        find_target(CliOptions(context="a"))


VALUES = [
    {"a": 1, "b": [1, 2.5, None, True, "x"], "c": {}, "d": [], "e": {"f": [{"g": "h"}, [["i"]]]}},
    {"no": "no", "yes": "Yes", "1": "1", "date": "2026-01-01", "~": "~", "": "", "a: b": "# c"},
    ["- x", "a\nb", "\x1b[2J", "é ü", "\U0001f600", "a/b.c-d", "null", "0x1f", "1e3", "=", "<<"],
    "plain",
    [],
]


@loop_over("value", VALUES)
def test_yaml_says_the_same_as_json(value: object) -> None:
    assert yaml.safe_load(to_yaml(value)) == json.loads(json.dumps(value))


def test_output_has_the_format_that_is_asked_for(desk: Desk, gateway: str) -> None:
    at = ("--url", gateway)
    whole = desk.run("servers", "-o", "json", *at).json
    assert yaml.safe_load(desk.run("servers", "-o", "yaml", *at).out).keys() == whole.keys()
    assert desk.run("servers", "-o", "name", *at).lines == ["example", "absent"]
    assert desk.run(*at, "-o", "name", "tools", "list", "-n", "2").lines == [
        "example__countdown",
        "example__delete_note",
    ]
    hint = "comity servers show NAME"
    assert hint in desk.run("servers", *at).out
    assert hint not in desk.run("servers", "-q", *at).out
    assert desk.run("servers", "-o", "xml", *at).status == 2


LISTING = """
import sys
from comity.cli.main import main
status = main(sys.argv[1:])
sys.stderr.write(" ".join(sorted(sys.modules)))
sys.exit(status)
"""
GATEWAY = {"sqlalchemy", "alembic", "comity.app.gateway", "comity.app.settings", "websockets"}


@pytest.mark.parametrize(
    "words",
    [
        ("tools", "list"),
        ("call", "example__echo", "message=hi"),
        ("servers", "list"),
        ("keys", "list"),
        ("approvals", "list"),
        ("status",),
    ],
)
def test_a_command_for_a_running_gateway_imports_none(
    desk: Desk, gateway: str, words: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTING, *words, "--url", gateway],
        env=desk.env,
        cwd=desk.folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert GATEWAY & set(done.stderr.split()) == set()
