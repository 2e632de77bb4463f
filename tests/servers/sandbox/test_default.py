"""Servers whose entry says nothing about confinement, in a real gateway."""

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from comity.servers.sandbox.levels import detect_levels
from comity.servers.sandbox.model import SandboxLevel
from tests.interop.processes import comity
from tests.servers.sandbox.levels import skip_without
from tests.servers.sandbox.test_confined_gateway import SERVER, Confined, a_site
from tests.support.cases import loop_over

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
]


@contextmanager
def plain(folder: Path, more: str = "", head: str = "") -> Generator[Confined]:
    skip_without(SandboxLevel.LANDLOCK)
    config = folder / "comity.toml"
    entry = f'id = "confined"\ncommand = {json.dumps(sys.executable)}\nargs = ["{SERVER}"]\n'
    config.write_text(f"{head}\n[[servers]]\n{entry}{more}")
    with comity(config) as origin:
        yield Confined(origin, config)


@pytest.mark.requirement("MGP-3.6-confined")
def test_a_server_that_was_granted_nothing_can_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMITY_POLICY_SANDBOX", raising=False)
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    with a_site() as port, plain(tmp_path) as gateway:
        assert gateway.server()["sandbox"] == detect_levels().best.label
        refused = gateway.call("read", path=str(secret))
        assert "the secret" not in refused
        command = "comity servers permissions approve confined filesystem.read"
        assert f"{command} --reach {secret}" in refused
        gateway.call("write", path=str(tmp_path / "new"), text="x")
        assert not (tmp_path / "new").exists()
        assert "the word" not in gateway.call("fetch", url=f"http://127.0.0.1:{port}/")
        assert "connected" not in gateway.call("connect", host="127.0.0.1", port=port)
        assert "hello" not in gateway.call("execute", words=["/bin/echo", "hello"])


@loop_over(
    ("more", "head"),
    [
        ('sandbox = "none"\n', ""),
        ('[servers.policy]\ntrust = "trusted"\n', ""),
        ("", '[policy]\nsandbox = "none"\n'),
    ],
)
def test_a_server_is_not_confined_where_the_operator_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, head: str
) -> None:
    monkeypatch.delenv("COMITY_POLICY_SANDBOX", raising=False)
    (tmp_path / "file").write_text("the file")
    with plain(tmp_path, more, head) as gateway:
        assert gateway.server()["sandbox"] == "none"
        assert "the file" in gateway.call("read", path=str(tmp_path / "file"))


def test_a_trusted_preset_confines_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMITY_POLICY_SANDBOX", raising=False)
    with plain(tmp_path, head='[policy]\nrequire_approval = "destructive"\n') as gateway:
        assert gateway.server()["sandbox"] != "none"
