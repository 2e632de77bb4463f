"""The search for tools, joined from the gate, what servers say of themselves, and vectors."""

from typing import Final

from msgspec import Raw

from comity.adapters.word_scores import fastest_scoring
from comity.kernel.finding import Finder
from comity.kernel.gate import Gate
from comity.kernel.servers import Server, Servers
from comity.kernel.tool_index import ServerWords
from comity.kernel.toolcare import ToolCare
from comity.ports.finding import Similarity
from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage

LONGEST: Final = 1_000


def make_finder(
    gate: Gate, servers: Servers, tools: ToolCare, similarity: Similarity | None = None
) -> Finder:
    """The one search of this node; it follows the catalog from now on."""

    def words_of(name: str) -> ServerWords:
        server = servers.get(name)
        return ServerWords() if server is None else words_said(server)

    def status_of(name: str) -> str:
        server = servers.get(name)
        return "" if server is None else server.state.value

    finder = Finder(gate, similarity, words_of, status_of, fastest_scoring())
    tools.unsettled = finder.index.look_again
    return finder


def words_said(server: Server) -> ServerWords:
    """What a server says of itself: its title, and what it is there for."""
    said = server.reached.hello or server.reached.discovered
    about = _members(said.get("serverInfo"))
    title = _text(about.get("title")) or _text(about.get("name"))
    description = _text(about.get("description")) or _text(said.get("instructions"))
    return ServerWords(title, description)


def _members(raw: Raw | None) -> dict[str, Raw]:
    try:
        return {} if raw is None else jsonrpc.members(raw)
    except MalformedMessage:
        return {}


def _text(raw: Raw | None) -> str:
    return (jsonrpc.text(raw) or "")[:LONGEST]
