"""The names of configuration files, and the order in which they are looked for. (MGP §15.2)"""

from typing import Final

OWN: Final = "comity.toml"
CLIENTS: Final = ("mcp.json", ".mcp.json")
MGP_LOCAL: Final = "mgp.toml"
MGP_USER: Final = ".config/mgp/servers.toml"
"""The only one that is looked for in the user's home, and not in the folder."""

MGP_VARIABLE: Final = "MGP_CONFIG_PATH"


def choices(override: str | None) -> tuple[tuple[str, ...], ...]:
    """The first choice of which a file is there is taken; its files are read together."""
    own = tuple((name,) for name in (OWN, *CLIENTS))
    return (*own, (override,)) if override else (*own, (MGP_LOCAL, MGP_USER))
