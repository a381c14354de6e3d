"""The SuperNodes that a SuperLink knows."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.proto.control_pb2 import ListNodesRequest

from server_app.connection import Connection
from server_app.control import connected, plain_errors


@dataclass(frozen=True)
class FlowerNode:
    """What ``flwr supernode list`` says of one."""

    node_id: int
    name: str
    """Given when its key was registered; empty without keys."""
    status: str
    """``online``, ``offline``, ``registered`` or ``unregistered``."""

    @property
    def online(self) -> bool:
        """Whether it reports."""
        return self.status == "online"


def list_nodes(connection: Connection) -> list[FlowerNode]:
    """All nodes, by node id.

    Raises:
        SuperLinkError: when the SuperLink does not answer.

    """
    with connected(connection) as client, plain_errors():
        found = client.ListNodes(ListNodesRequest()).nodes_info
    nodes = [FlowerNode(node.node_id, node.name, node.status) for node in found]
    return sorted(nodes, key=lambda node: node.node_id)
