"""The documents of an MCP registry: `server.json`, and the answers of its API.

A registry is not trusted. Every text and list has a limit, and unknown members are ignored.
(https://github.com/modelcontextprotocol/registry, API version 0.1)
"""

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from comity.errors import Misconfigured

MAX_ITEMS: Final = 64
MAX_PAGE: Final = 100

type Text = Annotated[str, Meta(max_length=2048)]
type ServerName = Annotated[
    str, Meta(pattern=r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+\Z", min_length=3, max_length=200)
]
type Version = Annotated[str, Meta(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_!~-]{0,127}\Z")]
"""A version that can stand in a command line. A range of versions has other characters."""

NAME: Final = re.compile(r"[a-zA-Z0-9.-]{1,190}/[a-zA-Z0-9._-]{1,190}")


class RegistryInput(Struct, frozen=True, rename="camel"):
    """A value that the publisher gives, or that the user must give."""

    description: Text = ""
    is_required: bool = False
    is_secret: bool = False
    value: Text | None = None
    default: Text | None = None


class RegistryVariable(RegistryInput, frozen=True, rename="camel"):
    """An environment variable or a header."""

    name: Annotated[str, Meta(max_length=128)] = ""
    variables: Annotated[dict[Text, RegistryInput], Meta(max_length=MAX_ITEMS)] = {}


class RegistryArgument(RegistryVariable, frozen=True, rename="camel"):
    """One argument of a command line, with a flag or without."""

    type: Literal["positional", "named"] = "positional"
    value_hint: Annotated[str, Meta(max_length=128)] = ""


class RegistryTransport(Struct, frozen=True, rename="camel"):
    """How to reach a server: by its input and output, or by a URL."""

    type: Annotated[str, Meta(max_length=64)]
    url: Text = ""
    headers: Annotated[list[RegistryVariable], Meta(max_length=MAX_ITEMS)] = []
    variables: Annotated[dict[Text, RegistryInput], Meta(max_length=MAX_ITEMS)] = {}


class RegistryPackage(Struct, frozen=True, rename="camel"):
    """A package that contains a server."""

    registry_type: Annotated[str, Meta(max_length=64)]
    identifier: Text
    transport: RegistryTransport
    registry_base_url: Text = ""
    version: Text = ""
    file_sha256: Annotated[str, Meta(pattern=r"^([a-f0-9]{64})?\Z")] = msgspec.field(
        name="fileSha256", default=""
    )
    runtime_hint: Annotated[str, Meta(max_length=64)] = ""
    runtime_arguments: Annotated[list[RegistryArgument], Meta(max_length=MAX_ITEMS)] = []
    package_arguments: Annotated[list[RegistryArgument], Meta(max_length=MAX_ITEMS)] = []
    environment_variables: Annotated[list[RegistryVariable], Meta(max_length=MAX_ITEMS)] = []


class RegistryServer(Struct, frozen=True, rename="camel"):
    """A `server.json`."""

    name: ServerName
    version: Version
    description: Text = ""
    title: Text = ""
    packages: Annotated[list[RegistryPackage], Meta(max_length=MAX_ITEMS)] = []
    remotes: Annotated[list[RegistryTransport], Meta(max_length=MAX_ITEMS)] = []


class RegistryItem(Struct, frozen=True):
    """A server in an answer of the API."""

    server: RegistryServer


class PageMetadata(Struct, frozen=True, rename="camel"):
    next_cursor: Text | None = None


class RegistryPage(Struct, frozen=True):
    """One page of servers, as the API sends it. Each server is decoded for itself."""

    servers: Annotated[list[dict[str, Any]], Meta(max_length=MAX_PAGE)] | None = None
    metadata: PageMetadata = PageMetadata()


def decode_page(document: dict[str, Any]) -> tuple[list[RegistryServer], str]:
    """Return the servers of a page without those that are malformed, and the next cursor.

    Raises Misconfigured if the page itself is malformed.
    """
    page = _convert(document, RegistryPage)
    found: list[RegistryServer] = []
    for each in page.servers or ():
        try:
            found.append(msgspec.convert(each, RegistryItem).server)
        except msgspec.ValidationError:
            continue
    return found, page.metadata.next_cursor or ""


def decode_server(document: dict[str, Any], name: str, version: str) -> RegistryServer:
    """Return the server of an answer. Raises Misconfigured if it is malformed or another one."""
    server = _convert(document, RegistryItem).server
    if server.name != name or version not in ("latest", server.version):
        raise Misconfigured(
            f"the registry sent {server.name} {server.version} instead of {name} {version}"
        )
    return server


def _convert[T](document: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as problem:
        raise Misconfigured(f"the registry sent a malformed answer: {problem}"[:300]) from None
