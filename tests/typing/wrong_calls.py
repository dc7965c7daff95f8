"""Calls that mypy must refuse, each for the reason beside it, and calls like them that it must accept.

`tests/unit/natty/test_wrong_calls.py` takes the ignores away and looks for each error in its line.
"""

from __future__ import annotations

from typing import assert_type

from capture import read
from natty import ConsumerConfig, Message, Natty, StreamConfig, StreamInfo, Term, as_leader


async def handle(message: Message) -> None:
    print(message.subject)


async def sweep(term: Term, days: int) -> str:
    return f"{term.token} {days}"


def sweep_in_a_thread(term: Term, *, dry: bool = False) -> int:
    return term.token


async def refused(client: Natty, info: StreamInfo) -> None:
    Natty(tls_insecure=True)  # type: ignore[call-arg]  # "tls_insecure"
    await Natty.connect(tls="yes")  # type: ignore[arg-type]  # "bool | None"
    await client.publish("orders.new", "text")  # type: ignore[arg-type]  # "bytes"
    await client.publish("orders.new", b"", msgid="1")  # type: ignore[call-arg]  # "msgid"
    await client.consume("ORDERS", "billing", handle, concurency=3)  # type: ignore[call-arg]  # "concurency"
    await client.consume("ORDERS", "billing", handle, concurrency="3")  # type: ignore[arg-type]  # "int"
    await client.consume("ORDERS", "billing", consumer={"ack_wiat": 30})  # type: ignore[arg-type]  # "ConsumerConfig | None"
    client.pull("ORDERS", "billing", max_mesages=5)  # type: ignore[call-arg]  # "max_mesages"
    await client.create_stream("ORDERS", subject=["orders.>"])  # type: ignore[call-arg]  # "subject"
    await client.create_stream("ORDERS", subjects="orders.>")  # type: ignore[arg-type]  # "list[str] | tuple[str, ...]"
    await client.ensure_stream("ORDERS", retention="workque")  # type: ignore[arg-type]  # "Literal['limits', 'interest'
    await client.ensure_stream("ORDERS", placement={"tag": ["ssd"]})  # type: ignore[typeddict-unknown-key]  # "tag"
    await client.create_consumer("ORDERS", "billing", max_deliver="5")  # type: ignore[arg-type]  # "int"
    await client.ensure_consumer("ORDERS", "billing", ack_wiat=30)  # type: ignore[call-arg]  # "ack_wiat"
    await client.create_bucket("flights", history="5")  # type: ignore[arg-type]  # "int"
    client.bucket("flights").watch("lh.>", update_only=True)  # type: ignore[call-arg]  # "update_only"
    client.publisher("ORDERS", fsat=True)  # type: ignore[call-arg]  # "fsat"
    client.election("billing", leas=2)  # type: ignore[call-arg]  # "leas"
    client.election("billing").run(handle)  # type: ignore[call-overload]  # "run" of "Election"
    client.as_leader("billing")(handle)  # type: ignore[arg-type]  # "Callable[[Term], Awaitable
    await as_leader("billing")(sweep)("7")  # type: ignore[arg-type]  # "int"
    await client.as_leader("billing")(sweep_in_a_thread)(dy=True)  # type: ignore[call-arg]  # "dy"
    client.group("ORDERS", "workers").join("m1", handle, membr="m2")  # type: ignore[call-arg]  # "membr"
    client.group("ORDERS", "workers").join("m1", handle, consumer={"ack_wiat": 9})  # type: ignore[typeddict-unknown-key]  # "ack_wiat"
    read("archive", start_seq=1)  # type: ignore[call-arg]  # "start_seq"
    info["config"]["max_agee"]  # type: ignore[typeddict-item]  # "max_agee"
    info["state"]["messages"] + "5"  # type: ignore[operator]  # ("int" and "str")


async def accepted(client: Natty, info: StreamInfo) -> int:
    seven_days: StreamConfig = {"subjects": ("orders.>",), "max_age": "7d", "max_bytes": "1GiB"}
    await client.ensure_stream("ORDERS", **seven_days, allow_destructive=True)
    await client.create_stream("BILLS", subjects=["bills.>"], max_age=7 * 86400, max_msg_size=65536)
    billing: ConsumerConfig = {"ack_wait": 60, "backoff": ["1s", 5.0], "filter_subject": "orders.eu.>"}
    await client.create_consumer("ORDERS", "billing", **billing)
    await client.consume("ORDERS", "billing", handle, consumer=billing, concurrency=3)
    headers = (await client.get_message("ORDERS", sequence=1)).headers
    await client.publish("orders.copy", b"", headers=headers)
    await client.publish_async("orders.copy", b"", headers=headers)
    assert_type(await client.as_leader("billing", lease=5)(sweep)(days=7), str)
    assert_type(await as_leader("billing")(sweep_in_a_thread)(dry=True), int)
    client.group("ORDERS", "workers").join("m1", handle, consumer={"sample_freq": "10", "ack_wait": "9s"})
    await (await client.create_bucket("flights", ttl="1d", history=5, storage="memory")).put("lh.400", b"")
    return info["state"]["messages"] + info["config"]["max_age"]
