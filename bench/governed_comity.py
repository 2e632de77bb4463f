"""Comity as a large installation has it: credentials required, a store, and everything checked."""

import json
import sys
import tempfile

from bench.contenders import Way
from bench.eras import VERSION_BY_ERA
from bench.realm import Realm

_VALIDATED = 'validators = ["network_restricted"]'
# A dangerous call would wait for a person otherwise.
_NOT_ASKED = 'require_approval = "never"'


def command(way: Way, realm: Realm) -> list[str]:
    with tempfile.NamedTemporaryFile(
        "w", dir=way.workplace, suffix=".toml", delete=False
    ) as configuration:
        configuration.write(_settings(way, realm))
    return [sys.executable, "-m", "comity.cli", "serve", "-c", configuration.name, "--port", "0"]


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
protocol = "{VERSION_BY_ERA[way.era]}"

[servers.tools.echo]
risk = "{realm.risk}"
{_VALIDATED}
{_NOT_ASKED if realm.risk == "dangerous" else ""}
"""
