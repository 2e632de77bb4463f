"""How a server is registered, and taken away again, at run time. (MGP §15.4, §15.5, D-30)

Everything here was written by whoever registers: a wish with bounds, and never authority. What the
message says of its creator and of its trust is testimony.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

REGISTER: Final = "mgp/discovery/register"
DEREGISTER: Final = "mgp/discovery/deregister"

MOST_WORDS: Final = 64
MOST_CODE: Final = 32 * 1024
MOST_ARGUMENTS: Final = 16 * 1024
"""All words of a command line together."""

type _Word = Annotated[str, Meta(max_length=2048)]
type _Name = Annotated[str, Meta(min_length=1, max_length=200)]
type _Remark = Annotated[str, Meta(max_length=2000)]

_ENVELOPE: Final = "_meta"


class _Mgp(Struct, forbid_unknown_fields=True):
    """What the table `mgp` of a server may say; none of it is believed."""

    extensions: Annotated[list[_Name], Meta(max_length=32)] = []
    permissions_required: Annotated[list[_Name], Meta(max_length=64)] = []
    trust_level: Annotated[str, Meta(max_length=64)] = ""
    restart_policy: Literal["never", "on_failure", "always"] = "on_failure"


class _Register(Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=64)]
    transport: Literal["stdio", "http"] = "stdio"
    command: Annotated[str, Meta(max_length=512)] = ""
    args: Annotated[list[_Word], Meta(max_length=MOST_WORDS)] = []
    url: Annotated[str, Meta(max_length=2048)] = ""
    code: Annotated[str, Meta(max_length=MOST_CODE)] = ""
    mgp: _Mgp | None = None
    created_by: Annotated[str, Meta(max_length=200)] | None = None
    justification: _Remark = ""


class _Deregister(Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=64)]
    reason: _Remark = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A server that somebody wants to be there: a command to run, code to run, or a URL to call."""

    id: str
    command: str = ""
    args: tuple[str, ...] = ()
    url: str = ""
    code: str = ""
    extensions: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    restart_policy: Literal["never", "on_failure", "always"] = "on_failure"
    claimed_by: str = ""
    claimed_trust: str = ""
    justification: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        return (self.command, *self.args)

    @property
    def is_made(self) -> bool:
        """Whether it is made of code that came with the message; a script is a command."""
        return bool(self.code) and not self.command

    @property
    def transport(self) -> Literal["stdio", "http"]:
        return "http" if self.url else "stdio"


@dataclass(frozen=True, slots=True)
class Unwanted:
    """A server that is to go, and why."""

    id: str
    reason: str


def wanted(params: Mapping[str, Raw]) -> Wanted:
    """The server that a request is about; raises MalformedMessage."""
    said = _read(params, _Register)
    ways = [name for name in ("command", "url", "code") if getattr(said, name)]
    if len(ways) != 1 or (said.transport == "http") != (ways == ["url"]):
        raise MalformedMessage(
            "say one of: a command (stdio), code (stdio), or a url (http)", INVALID_PARAMS
        )
    if said.args and not said.command:
        raise MalformedMessage("args belong to a command", INVALID_PARAMS)
    if len(said.command) + sum(map(len, said.args)) > MOST_ARGUMENTS:
        raise MalformedMessage("its command line is too long", INVALID_PARAMS)
    declared = said.mgp or _Mgp()
    return Wanted(
        *(said.id, said.command, tuple(said.args), said.url, said.code),
        *(tuple(declared.extensions), tuple(declared.permissions_required)),
        declared.restart_policy,
        said.created_by or "",
        declared.trust_level,
        said.justification,
    )


def unwanted(params: Mapping[str, Raw]) -> Unwanted:
    """The server that is to go; raises MalformedMessage."""
    said = _read(params, _Deregister)
    return Unwanted(said.id, said.reason)


def entry(wish: Wanted) -> dict[str, object]:
    """A wish as it is kept, and as it can be read again."""
    return {name: value for name in _KEPT if (value := getattr(wish, name))}


def kept(server: str, entry: Mapping[str, object]) -> Wanted:
    """What was kept of a server; raises MalformedMessage."""
    try:
        found = msgspec.convert({**entry, "id": server}, Wanted)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"no registration: {error}"[:300], INVALID_PARAMS) from None
    return found


_KEPT: Final = (
    *("command", "args", "url", "code", "extensions", "permissions", "restart_policy"),
    "justification",
)


def _read[T](params: Mapping[str, Raw], kind: type[T]) -> T:
    found: dict[str, Any] = {
        name: jsonrpc.value(raw) for name, raw in params.items() if name != _ENVELOPE
    }
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"{error}"[:300], INVALID_PARAMS) from None
