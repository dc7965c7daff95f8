"""Publishes orders to the stream ORDERS until SIGTERM or Ctrl-C, by default 50 each second; docker-compose.yml runs it.

The connection is what NATS_URL, NATS_CA, NATS_CERT and NATS_KEY say. ORDERS_PER_SECOND sets the rate.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
from uuid import uuid4

from natty import Natty

COUNTRIES = ("de", "fr", "jp", "us")
REPORT_EVERY = 2.0  # seconds


def order(number: int) -> dict[str, object]:
    return {"number": number, "country": random.choice(COUNTRIES), "total": random.randint(100, 100_000) / 100}


async def main(per_second: float) -> None:
    stopping, loop, run = asyncio.Event(), asyncio.get_running_loop(), uuid4().hex
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with Natty() as natty:
        await natty.ensure_stream("ORDERS", subjects=["orders.>"])
        reported = loop.time()
        async with natty.publisher("ORDERS") as publisher:  # at its end it waits until all are stored
            for number in itertools.count(1):
                body = order(number)
                await publisher.publish(
                    f"orders.{body['country']}", json.dumps(body).encode(), msg_id=f"{run}-{number}"
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), 1 / per_second)
                    break
                if loop.time() >= reported + REPORT_EVERY:
                    reported = loop.time()
                    print(publisher.stored, "orders stored", flush=True)
    print(publisher.stored, "orders stored", flush=True)
    print("stopped", flush=True)


if __name__ == "__main__":
    asyncio.run(main(float(os.environ.get("ORDERS_PER_SECOND", "50"))))
