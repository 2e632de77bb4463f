"""The table `[cluster]`: the NATS servers that join several nodes."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.config.document import ConfigValue
from comity.config.fields import FieldType, UrlField, setting

_NODE: Final = r"(nats|tls)://[^,\s]+"
CLUSTER_URL: Final = UrlField(
    "[cluster]",
    rf"^({_NODE}(,{_NODE})*)?$",
    "must be as nats://host:4222, or several of them with commas between",
)
NAME_RULE: Final = "must be 1 to 32 of the characters A-Z a-z 0-9 _ -"
_NAME: Final = r"^[A-Za-z0-9_-]{0,32}$"


def _read_name(value: ConfigValue) -> str:
    if not re.search(_NAME, value.text()):
        raise value.wrong(NAME_RULE)
    return value.text()


NODE_NAME: Final = FieldType(_read_name, {"type": "string", "pattern": _NAME})


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The connection of this node to the others over NATS."""

    # The URL may hold a password.
    url: str = setting(
        "",
        "The NATS servers that join several nodes; without one, this node is alone.",
        CLUSTER_URL.kind,
        is_secret=True,
    )
    credentials_file: str = setting("", "The file with the NATS credentials of this deployment.")
    ca_file: str = setting(
        "", "The CA certificate for `tls://` NATS servers; default: the certificates of the system."
    )
    allow_open_nats: bool = setting(
        False, "Whether Comity uses NATS servers on other machines that need no login."
    )
    node: str = setting("", "The name of this node.", NODE_NAME)
    name: str = setting(
        "comity", "The name of the deployment; it is the same on every node.", NODE_NAME
    )
    heartbeat_interval: timedelta = setting(
        timedelta(seconds=1), "How often a node sends a heartbeat."
    )
    dead_after: timedelta = setting(
        timedelta(seconds=5), "How long a node may be silent before it counts as dead."
    )
    lease_ttl: timedelta = setting(
        timedelta(seconds=10),
        'How long a server with `replicas = "single"` stays with a node that is silent.',
    )
    single_replica: bool = setting(
        False,
        'Whether each server with a command counts as `replicas = "single"`, '
        'unless it has `process_per = "session"`.',
    )
