"""natty.blocking keeps the types of natty's own methods: what mypy must accept, and what it must refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from natty import CoreMessage, Entry, Message, PubAck
from natty.blocking import Bucket, Natty, Running


def accepted(client: Natty, bucket: Bucket) -> None:
    assert_type(client.publish("a", b"", msg_id="1", timeout=2.0), PubAck)
    assert_type(client.request("a"), CoreMessage)
    assert_type(client.get("b", "k"), Entry)
    assert_type(bucket.get("k", revision=1), Entry)
    assert_type(client.subscribe("a.*", queue="q"), Iterator[CoreMessage])
    assert_type(client.read("S", from_sequence=5), Iterator[Message])
    assert_type(client.consume("S", "d", print, concurrency=3), Running)


def refused(client: Natty, bucket: Bucket) -> None:
    client.publish("a")  # type: ignore[call-arg]  # data is missing
    client.publish("a", b"", mesage_id="1")  # type: ignore[call-arg]
    client.consume("S", "d", print, concurency=3)  # type: ignore[call-arg]
    client.read("S", from_sequence="5")  # type: ignore[arg-type]
    bucket.put("k", b"", ttl=b"5")  # type: ignore[arg-type]
    Natty(tls_insecure=True)  # type: ignore[call-arg]
