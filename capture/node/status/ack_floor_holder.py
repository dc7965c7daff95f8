"""What the ack floor of a stream waits for: which node, block or other reader has the first unacknowledged message."""

from __future__ import annotations

from collections.abc import Sequence

from capture.ingest.board import LATE, Heard, StreamState
from natty.config.units import write_count


def explain(stream: StreamState, nodes: Sequence[Heard]) -> str:
    """Return a sentence that says what holds the ack floor back; "" if all messages are acknowledged. Pure.

    The server reports the first unacknowledged message, and each node the first one in its blocks. Nodes report every
    few seconds: a report from before the last ack does not count.
    """
    if not (stream.pending or stream.unacked):
        return ""
    running, late = ([one for one in nodes if one.is_late == is_late] for is_late in (False, True))
    if not running:  # 1. nothing captures
        return f"no node is running: {write_count(stream.pending + stream.unacked, 'message')} wait in the stream"
    first = "the first unacknowledged message" if stream.waiting_from is None else f"message {stream.waiting_from:,}"
    if stream.waiting_from is None and not stream.unacked:
        return "it is not known: the server did not return the first message that waits"
    if not stream.unacked:  # 2. direct captures have no acknowledgements: their blocks are among `pending`
        holders = [one for one in running if one.node.lowest and one.node.lowest == stream.waiting_from]
        return _describe_block(holders[0], first) if holders else f"{first} is not delivered to a node yet"
    for one in running:
        if one.node.lowest is not None and one.node.lowest == stream.waiting_from:  # 3. a block
            return _describe_block(one, first)
    for one in running:
        if one.node.store_trouble:  # 4. blocks that were handed back
            again = "the server delivers its messages again"
            return f"{one.node.node} could not store a block, {again}: {one.node.store_trouble}"
    for one in late:  # 5. a node that died or hangs, until the server has delivered its messages again
        if stream.ack_wait and one.ago > one.node.every * LATE + stream.ack_wait:
            continue
        return f"{one.node.node}, which has not reported for {one.ago:.0f} s, may have {first}: {_again(stream)}"
    for one in running:
        if one.node.pending and one.node.lowest is None:  # 6. a node of an earlier version
            return f"it is not known: {one.node.node} has an earlier version, which does not report what it has"
    for one in running:
        if one.node.lowest is not None and one.node.lowest <= stream.acked:  # 7. acknowledged since the report
            return f"nothing: it has moved since the last report of {one.node.node}, {one.ago:.0f} s ago"
    return f"{first} is in no block of a running node: another reader of the consumer has it, or {_again(stream)}"  # 8.


def _describe_block(one: Heard, first: str) -> str:
    """Return which block has the first unacknowledged message."""
    node = one.node
    since = f", open for {node.oldest + one.ago:.0f} s at most" if node.oldest is not None else ""
    trouble = f"; {node.store_trouble}" if node.store_trouble else ""
    return f"{first} is in a block of {node.node} that is not stored yet{since}{trouble}"


def _again(stream: StreamState) -> str:
    within = f" within {stream.ack_wait:g} s" if stream.ack_wait else ""
    return f"the server delivers it again{within}"
