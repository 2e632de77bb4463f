"""Comity as a large installation has it: credentials required, a store, and everything checked."""

import json
import sys
import tempfile

from bench.contenders import Way
from bench.realm import Realm

# Who has a tool watched so admits that it is not safe.
_VALIDATED = 'validators = ["network_restricted"]'


def command(way: Way, realm: Realm) -> list[str]:
    with tempfile.NamedTemporaryFile(
        "w", dir=way.workplace, suffix=".toml", delete=False
    ) as configuration:
        configuration.write(_settings(way, realm))
    return [sys.executable, "-m", "comity.cli", "serve", configuration.name, "--port", "0"]


def surroundings(realm: Realm) -> dict[str, str]:
    return {"COMITY_PEPPER": realm.pepper}


def _settings(way: Way, realm: Realm) -> str:
    return f"""
[identity]
mode = "required"

[store]
url = {json.dumps(realm.store)}

[[servers]]
id = "stub"
url = {json.dumps(way.upstream[0])}
era = "{way.era}"

[servers.tools.echo]
risk = "{realm.risk}"
{_VALIDATED if realm.risk != "safe" else ""}
"""
