"""The list of accounts says to each principal what it may see, connect and disconnect."""

from collections.abc import Generator
from pathlib import Path

import pytest

from comity.policy.grants import Effect, Grant
from tests.accounts.scene import AGENT, ANA, BEN, SERVER, AccountScene, an_account_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

READER = "person:eva"
GRANTS = (
    Grant(READER, "admin/read", "*", Effect.ALLOW),
    Grant(READER, "tools/*", "*", Effect.ALLOW),
)
# One account for all callers, and one that the gateway gets by itself.
MORE_SERVERS = """
[[servers]]
id = "team"
url = "http://127.0.0.1:9/mcp"
account = "shared"
[[servers]]
id = "robot"
url = "http://127.0.0.1:9/mcp"
account = "shared"
[servers.oauth]
grant = "client_credentials"
issuer = "http://127.0.0.1:9"
client_id = "gateway"
client_secret = "a secret"
"""
# The principal, where it may connect an account, and the accounts that it sees and may disconnect.
CASES = {
    "an administrator": (ANA, {SERVER, "team"}, {ANA: True, BEN: True}),
    "a person with tools": (BEN, {SERVER}, {BEN: True}),
    "a person who reads": (READER, {SERVER}, {ANA: False, BEN: False}),
    "an agent that may use an account": (AGENT, set[str](), dict[str, bool]()),
}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Generator[AccountScene]:
    folder: Path = tmp_path_factory.mktemp("access")
    with an_account_scene(folder, server_settings=MORE_SERVERS, grants=GRANTS) as made:
        yield made


@pytest.mark.parametrize("case", CASES)
async def test_a_principal_is_told_what_it_may_do(scene: AccountScene, case: str) -> None:
    principal, connectable, visible = CASES[case]
    known = {each["owner"] for each in (await scene.api("GET", "/api/accounts"))["accounts"]}
    for person in {ANA, BEN} - known:
        await scene.connect(person)
    found = await scene.api("GET", "/api/accounts", principal)
    assert [each["server"] for each in found["servers"]] == [SERVER, "robot", "team"]
    assert {each["server"] for each in found["servers"] if each["may_connect"]} == connectable
    assert {each["owner"]: each["may_disconnect"] for each in found["accounts"]} == visible
