"""Addresses of nodes, whoever published them."""

from __future__ import annotations

from node.clients.presence import Presence
from tests.unit.node.clients.answering import presence
from twinlog.session.routing import parse_route


def test_addresses_of_others_and_of_oneself() -> None:
    """No address without a host and a port that is served."""
    known = presence()
    assert known.address("n1", "client_port") == ("h1", 71)
    assert known.slave_address("n2") == ("h2", 82)
    assert known.address("n2", "http_port") is None
    assert known.address("n3", "client_port") is None
    assert known.address("n9", "client_port") is None
    assert known.address(None, "client_port") is None


def test_an_odd_entry_of_another_node_spoils_no_answer() -> None:
    """Anybody may write one at the coordinator; what clients could not read is left out."""
    odd: dict[str, dict[str, object]] = {
        "n2": {"name": "n1", "host": 7, "client_port": "72", "slave_port": 70_000, "role": "slave"},
        "n3": {"name": ["n3"], "host": "h3", "client_port": True, "slave_port": 83, "age": "old"},
    }
    found = Presence("n1", lambda: odd)
    found.own = {"name": "n1", "host": "h1", "client_port": 71}
    assert found.entries() == [
        {"name": "n1", "host": "h1", "client_port": 71},
        {"name": "n2", "role": "slave"},
        {"name": "n3", "host": "h3", "slave_port": 83},
    ]
    nodes: list[object] = [dict(entry) for entry in found.entries()]
    fields = {"topics": {}, "nodes": nodes, "cluster": "c", "group": "g1"}
    assert [node.client_port for node in parse_route(fields).nodes] == [71, 0, 0]
    assert found.slave_address("n2") is None
    odd["n2"] = {"host": "h2", "slave_port": 70_000}
    assert found.slave_address("n2") is None
    assert found.slave_address("n3") == ("h3", 83)
