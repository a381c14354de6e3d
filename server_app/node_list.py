"""The SuperNodes that a SuperLink knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flwr.proto.control_pb2 import ListNodesRequest

from server_app.connection import Connection
from server_app.control import connected, plain_errors
from server_app.flower_run import flwr


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


def register(connection: Connection, home: Path, public_keys: Iterable[Path]) -> dict[str, bool]:
    """Tell a SuperLink the public keys of nodes that it may let in, each named after its file.

    ``home``: of ``flwr`` commands to it. By name: whether it is new; one that is known stays.

    Raises:
        SuperLinkError: when the SuperLink does not answer, or refuses a key.

    """
    known = {node.name for node in list_nodes(connection) if node.status != "unregistered"}
    found = {}
    for key in public_keys:
        found[key.stem] = key.stem not in known
        if found[key.stem]:
            flwr(home, "supernode", "register", str(key.absolute()), "--name", key.stem)
    return found
