"""What an operator decides of a server and its tools is read, and every mistake in it is named."""

from pathlib import Path

import pytest

from comity.rules.policies import RequireApproval, ToolPolicy
from comity.wire.errors import Misconfigured
from comity.wire.security import Risk
from tests.config.writing import from_text, one

WRITTEN = """
[policy]
require_approval = "dangerous"
suspicious = "strict"
fallback_validators = "on"
definitions = "approve"
approval_policy = "interactive"

[[servers]]
id = "files"
command = "x"

[servers.policy]
approval_policy = "config_only"
permissions = ["shell", "com.example.own"]
on_denied = "reject"
trust = "experimental"
risk = "moderate"
definitions = "off"

[servers.tools.run]
risk = "dangerous"
validators = ["sandbox", "network_restricted"]
arguments = { line = "command", where = "url" }
require_approval = "always"
cost = 5
idempotent = true
max_retries = 2
fallback_tool = "files__list"

[servers.tools."drop_*"]
disabled = true
"""


def test_what_was_decided_of_a_server_and_its_tools_is_read(tmp_path: Path) -> None:
    settings = from_text(tmp_path, WRITTEN)
    assert (settings.require_approval, settings.suspicious) == ("dangerous", "strict")
    assert (settings.fallback_validators, settings.definitions) == ("on", "approve")
    assert settings.approval_policy == "interactive"
    (server,) = settings.servers
    assert server.policy == {
        "approval_policy": "config_only",
        "permissions": ("shell.execute", "com.example.own"),
        "on_denied": "reject",
        "trust": "sandboxed",
        "risk": "moderate",
        "definitions": "off",
    }
    assert server.tools == {
        "run": ToolPolicy(
            Risk.DANGEROUS,
            ("sandbox", "network_restricted"),
            {"line": "command", "where": "url"},
            RequireApproval.ALWAYS,
            cost=5,
            idempotent=True,
            max_retries=2,
            fallback_tool="files__list",
        ),
        "drop_*": ToolPolicy(disabled=True),
    }


def test_the_list_of_tools_in_a_clients_own_file_is_none_of_ours(tmp_path: Path) -> None:
    assert one(tmp_path, {"command": "x", "tools": ["*"]}).tools == {}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"policy": {"trust": "best"}}, "policy.trust: must be one of"),
        ({"policy": {"permission": []}}, "did you mean 'permissions'"),
        ({"policy": {"permissions": ["a b"]}}, r"permissions\[0\]: must be written as"),
        ({"policy": {"approval_policy": "yes"}}, "approval_policy: must be one of: interactive"),
        ({"policy": {"risk": "low"}}, "risk: must be one of: safe, moderate, dangerous"),
        ({"policy": []}, "policy: must be a table"),
        (
            {"tools": {"run": {"require_approval": "sometimes"}}},
            "tools.run.require_approval: must be one of",
        ),
        ({"tools": {"run": {"arguments": {"a": "secret"}}}}, "arguments.a: must be one of"),
        ({"tools": {"run": {"retries": 2}}}, "did you mean 'max_retries'"),
        ({"tools": {"run": {"max_retries": 100}}}, "max_retries: must be between 0 and 10"),
        ({"tools": {"run": True}}, "tools.run: must be a table"),
    ],
)
def test_a_mistake_in_what_was_decided_is_named(
    tmp_path: Path, entry: dict[str, object], told: str
) -> None:
    with pytest.raises(Misconfigured, match=told):
        one(tmp_path, {"command": "x", **entry})
