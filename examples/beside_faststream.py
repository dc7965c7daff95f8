"""FastStream and natty in one process: one event loop, one server, one set of settings (`NATS_URL`, `NATS_CA`, …).

FastStream answers requests over core NATS, which are lost without a subscriber. Messages that must not get lost go
through a stream: natty stores it before the caller has its answer, and hands it to a handler until that succeeds.
"""

import asyncio
from math import ceil

from faststream import FastStream
from faststream.nats import NatsBroker
from faststream.security import BaseSecurity

from natty import Natty
from natty.config.tls import client_context

ORDERS = 5

natty = Natty(name="beside FastStream")
config = natty.config
tls = client_context(ca=config.tls_ca, cert=config.tls_cert, key=config.tls_key) if config.tls_required else None
broker = NatsBroker(
    list(config.servers), security=BaseSecurity(ssl_context=tls), connect_timeout=ceil(config.connect_timeout)
)
app = FastStream(broker)
arrived: asyncio.Queue[str] = asyncio.Queue()
tasks: list[asyncio.Task[None]] = []


@broker.subscriber("example.orders")
async def order(item: str) -> str:
    stored = await natty.publish("example.shipments", item.encode())
    return f"{item} ordered in {stored.stream}"


async def ship(item: str) -> None:
    await broker.publish(f"{item} shipped", "example.arrivals")


@broker.subscriber("example.arrivals")
async def arrive(text: str) -> None:
    await arrived.put(text)


shipping = natty.consume("EXAMPLE_SHIPMENTS", "shipping", ship, signals=False)  # FastStream stops the process


@app.on_startup
async def connect() -> None:
    await natty.connection.open()
    await natty.ensure_stream("EXAMPLE_SHIPMENTS", subjects=["example.shipments"])


@app.after_startup
async def begin() -> None:
    tasks.extend([asyncio.create_task(shipping.run()), asyncio.create_task(shop())])


async def shop() -> None:
    for number in range(ORDERS):
        answer = await broker.request(f"book {number}", "example.orders", timeout=config.timeout)
        print(await answer.decode(), flush=True)
    for _ in range(ORDERS):
        print(await arrived.get(), flush=True)
    app.exit()


@app.on_shutdown
async def leave() -> None:
    shipping.stop()  # handlers that run finish while there is a broker to publish with
    await tasks[0]
    await natty.close()
    print("stopped", flush=True)


if __name__ == "__main__":
    asyncio.run(app.run())
