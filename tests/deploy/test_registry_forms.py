"""`server.json` for MCP registries, and the bundle for desktop clients."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from tests.cli.program import EXAMPLE, SECONDS, Desk
from tests.deploy.files import understood

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]

# The parts of the registry's schema (2025-12-11) that this file uses.
ARGUMENT: dict[str, Any] = {
    "type": "object",
    "oneOf": [
        {
            "properties": {"type": {"const": "positional"}},
            "anyOf": [{"required": ["value"]}, {"required": ["valueHint"]}],
        },
        {
            "properties": {"type": {"const": "named"}, "name": {"pattern": "^--?[a-z]"}},
            "required": ["name"],
        },
    ],
    "required": ["type"],
}
SERVER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "$schema": {"pattern": r"^https://static\.modelcontextprotocol\.io/schemas/[0-9-]+/"},
        "name": {"pattern": r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", "maxLength": 200},
        "title": {"type": "string", "minLength": 1, "maxLength": 100},
        "description": {"type": "string", "minLength": 1, "maxLength": 100},
        "version": {"const": VERSION},
        "packages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "registryType": {"enum": ["pypi", "oci", "mcpb"]},
                    "version": {"const": VERSION},
                    "transport": {"properties": {"type": {"const": "stdio"}}},
                    "packageArguments": {"type": "array", "items": ARGUMENT},
                    "environmentVariables": {"items": {"required": ["name"]}},
                },
                "required": ["registryType", "identifier", "transport"],
            },
        },
    },
    "required": ["$schema", "name", "description", "version", "packages"],
    "additionalProperties": False,
}

# The parts of the manifest's schema (0.4) that this bundle uses.
MANIFEST: dict[str, Any] = {
    "type": "object",
    "properties": {
        "manifest_version": {"const": "0.4"},
        "version": {"const": VERSION},
        "author": {"type": "object", "required": ["name"]},
        "server": {
            "properties": {
                "type": {"const": "python"},
                "mcp_config": {
                    "properties": {
                        "args": {"items": {"type": "string"}},
                        "env": {"additionalProperties": {"type": "string"}},
                    },
                    "required": ["command"],
                },
            },
            "required": ["type", "entry_point", "mcp_config"],
            "additionalProperties": True,
        },
        "user_config": {
            "additionalProperties": {
                "properties": {
                    "type": {"enum": ["string", "number", "boolean", "directory", "file"]}
                },
                "required": ["type", "title", "description"],
            }
        },
    },
    "required": ["manifest_version", "name", "version", "description", "author", "server"],
}


def build(folder: Path) -> Path:
    script = [str(ROOT / "scripts" / "mcpb"), str(folder)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=SECONDS, check=True)
    return Path(done.stdout.strip())


def test_the_entry_for_registries_has_their_form() -> None:
    entry = json.loads((ROOT / "server.json").read_text("utf-8"))
    Draft202012Validator(SERVER).validate(entry)
    # Registries compare this line of the published package with the name.
    assert f"mcp-name: {entry['name']}" in (ROOT / "README.md").read_text("utf-8")


def test_the_arguments_of_the_entry_start_the_bridge() -> None:
    entry = json.loads((ROOT / "server.json").read_text("utf-8"))
    given = entry["packages"][0]["packageArguments"]
    words = [each.get("value") or each["name"] for each in given if each.get("isRequired", True)]
    assert words == ["serve", "--stdio"]
    assert understood(words) == "serve"
    optional = [each["name"] for each in given if not each.get("isRequired", True)]
    assert optional == ["--config"]
    assert understood([*words, "--config", "comity.toml"]) == "serve"


def test_a_bundle_has_the_form_that_clients_read_and_is_always_the_same(tmp_path: Path) -> None:
    bundle = build(tmp_path / "a")
    assert bundle.name == f"comity-{VERSION}.mcpb"
    assert bundle.read_bytes() == build(tmp_path / "b").read_bytes()
    with zipfile.ZipFile(bundle) as packed:
        assert packed.testzip() is None
        names = packed.namelist()
        manifest = json.loads(packed.read("manifest.json"))
    Draft202012Validator(MANIFEST).validate(manifest)
    assert manifest["server"]["entry_point"] in names
    named = re.findall(r"\$\{user_config\.(\w+)\}", json.dumps(manifest["server"]))
    assert set(named) == set(manifest["user_config"])


@pytest.mark.parametrize("config", ["named", "${user_config.configuration}"])
def test_an_unpacked_bundle_serves_a_client(tmp_path: Path, config: str) -> None:
    desk = Desk(tmp_path)
    written = desk.write("~/.config/comity/comity.toml", _servers())
    folder = tmp_path / "bundle"
    with zipfile.ZipFile(build(tmp_path)) as packed:
        packed.extractall(folder)
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    arguments = [each.replace("${__dirname}", str(folder)) for each in _arguments(manifest)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
    chosen = str(written) if config == "named" else config
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=desk.folder,
        env={**desk.env, "PATH": path, "COMITY_BUNDLE_CONFIG": chosen, "COMITY_IDLE_SECONDS": "1"},
        input=json.dumps(frame) + "\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["result"]["serverInfo"]["name"] == "comity"


def test_a_machine_without_comity_and_uvx_is_told_what_to_install(tmp_path: Path) -> None:
    launcher = str(ROOT / "deploy" / "mcpb" / "launcher.py")
    done = subprocess.run(
        [sys.executable, launcher],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode == 0:
        pytest.skip("this machine has one of them where installers put it")
    assert "Install Comity with" in done.stderr


_CLIENT = {"name": "t", "version": "1"}


def _arguments(manifest: Any) -> list[str]:
    return manifest["server"]["mcp_config"]["args"]


def _servers() -> str:
    command, arguments = json.dumps(EXAMPLE["command"]), json.dumps(EXAMPLE["args"])
    return f'[[servers]]\nid = "example"\ncommand = {command}\nargs = {arguments}\n'
