"""Whether the nodes of a process capture now, and why not: for probes, and for the supervisor of workers."""

from __future__ import annotations

from capture.node.node import Node
from capture.node.nodes import Several
from natty import Natty
from natty.metrics import telemetry


def list_nodes(running: Node | Several) -> list[Node]:
    """Return the nodes of a process, one for each stream."""
    return [running] if isinstance(running, Node) else running.nodes


def find_client(nodes: list[Node]) -> Natty | None:
    """Return the client that the nodes share; None before it is connected."""
    return next((node.natty for node in nodes if node.natty), None)


def not_ready(running: Node | Several) -> list[str]:
    """Return the reasons why not every stream is captured now."""
    nodes = list_nodes(running)
    natty = find_client(nodes)
    if natty is None:
        return [": ".join(filter(None, ("not connected yet", running.start.waits_for)))]
    failing = {} if isinstance(running, Node) else running.failing
    starting = {one.config.stream: one.start.waits_for for one in nodes if not one.start.over}
    return [
        *telemetry.not_ready(natty),
        *(f"stream {stream} failed: {why}" for stream, why in failing.items()),
        *(node.store_trouble for node in nodes if node.store_trouble),
        *(
            ": ".join(filter(None, (f"stream {stream} is not captured yet", lacks)))
            for stream, lacks in starting.items()
            if stream not in failing
        ),
    ]


def count_stored(running: Node | Several, what: str) -> int:
    """Return how many "messages", or "blocks", were stored since the process began."""
    return sum(one.stored[what] for one in list_nodes(running))


def has_captured(running: Node | Several) -> bool:
    """Return whether a stream was captured since the process began: whether one node's start is over."""
    return any(one.start.over for one in list_nodes(running))
