"""How `${VARIABLE}` in a configured text becomes its value.

`${NAME}` and `${env:NAME}` are replaced, `${NAME:-default}` too if NAME is unset or empty. `$${`
stands for a plain `${`; every other `$` is itself, since passwords are full of them.
"""

import re
from collections.abc import Mapping

from comity.wire.errors import Misconfigured

# Any `${`, so that one which cannot be read is an error and is never passed on as it stands.
_REFERENCE = re.compile(r"\$?\$\{(?:(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """The text with every variable replaced, once: a value is never read for variables again."""
    return _REFERENCE.sub(lambda found: _value(found, variables), text)


def _value(found: re.Match[str], variables: Mapping[str, str]) -> str:
    whole = found.group()
    if whole.startswith("$$"):
        return whole[1:]
    if found.string.startswith("input:", found.start() + 2):
        raise Misconfigured(
            "an ${input:...} is asked for by an editor, and nobody can be asked here; "
            "write ${NAME} and set that variable"
        )
    name: str | None = found[1]
    default: str | None = found[2]
    if name is None:
        raise Misconfigured(
            "a ${...} that is no variable; write ${NAME}, ${NAME:-default}, or $${ for a plain ${"
        )
    value = variables.get(name, "")
    if value or (default is None and name in variables):
        return value
    if default is None:
        raise Misconfigured(
            f"the variable {name} is not set; set it, or write ${{{name}:-default}}"
        )
    return default
