"""Operator API for the nodes of the gateway."""

from collections.abc import Callable, Iterable
from typing import Final, TypedDict

from comity.cluster.nodes import ClusterMembers, Node
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyQuery

NODES_PATH: Final = "/api/nodes"


class NodeView(TypedDict):
    """A live node, and the servers that it runs."""

    name: str
    id: str
    version: str
    started: str
    runs: list[str]
    is_self: bool


class NodeListView(TypedDict):
    """The live nodes. `isolated` is why this node is cut off; `silent` counts missing ones."""

    nodes: list[NodeView]
    isolated: str | None
    silent: int


class NodesApi:
    """The route that lists the live nodes, as this node knows them.

    A gateway without a cluster is the only node and runs all its servers.
    """

    def __init__(
        self, node: Node, members: ClusterMembers | None, servers: Callable[[], Iterable[str]]
    ) -> None:
        self._node = node
        self._members = members
        self._servers = servers

    @property
    def routes(self) -> ApiRoutes:
        return (ApiRoute("GET", NODES_PATH, Permission.ADMIN_READ, self._list_nodes, EmptyQuery),)

    async def _list_nodes(self, _: ApiRequest[EmptyQuery]) -> NodeListView:
        if self._members is None:
            lone = _node_view(self._node, self._servers(), is_self=True)
            return {"nodes": [lone], "isolated": None, "silent": 0}
        members = self._members
        found = [_node_view(members.me, members.runs, is_self=True)]
        found += [_node_view(peer.node, peer.runs, is_self=False) for peer in members]
        found.sort(key=lambda each: (each["name"], each["id"]))
        return {"nodes": found, "isolated": members.cut_off or None, "silent": members.silent}


def _node_view(node: Node, servers: Iterable[str], *, is_self: bool) -> NodeView:
    return {
        "name": node.name,
        "id": node.id,
        "version": node.version,
        "started": node.started_at,
        "runs": sorted(servers),
        "is_self": is_self,
    }
