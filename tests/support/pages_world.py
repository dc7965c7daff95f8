"""What the readers of the documents have: a server, its stream ORDERS, an archive of it in the folder `lake`."""

import json
from contextlib import asynccontextmanager
from pathlib import Path

from archiving import compact_once, store_all, sweep_once
from command_line import settings_of
from patient import PATIENT

from capture.config.load import load
from capture.stores import open_store
from natty import Natty
from natty.streams.listing import stream_names

SUBJECTS = ("orders.eu.{}", "orders.us.{}", "orders.test.{}", "orders.new")
MESSAGES = 20
SETTINGS = 'stream = "ORDERS"\nstore = "lake"\ndecoder = "json"\n'


@asynccontextmanager
async def prepared(server, folder, monkeypatch, empty=True):
    """In a folder, with the variables that name the server, whose streams are deleted: yield a client of it."""
    monkeypatch.chdir(folder)
    for name, value in settings_of(server.connect_options(), folder).items():
        monkeypatch.setenv(name, value)
    async with Natty(**server.connect_options(), **PATIENT) as client:
        for name in await stream_names(client.jetstream) if empty else ():
            await client.delete_stream(name)
        yield client


async def make_orders(client, messages=MESSAGES, **settings):
    """Make the stream ORDERS with messages of some subjects, the first on `orders.eu.1`."""
    await client.ensure_stream("ORDERS", subjects=["orders.>"], **settings)
    for number in range(1, messages + 1):
        order = {"id": number, "customer": f"c{number % 5}", "country": ("DE", "FR")[number % 2], "total": number / 4}
        subject = SUBJECTS[(number - 1) % len(SUBJECTS)].format(number)
        await client.publish(
            subject, json.dumps(order).encode(), headers={"Region": "eu" if ".eu." in subject else "us"}
        )


async def archive_orders(client, settings=SETTINGS, **stream):
    """Make ORDERS and `capture.toml`, and store, sweep and compact the stream's messages in `lake`."""
    await make_orders(client, **stream)
    Path("capture.toml").write_text(settings)
    config = load(Path("capture.toml"))
    store = open_store(config.store)
    await store_all(client, config, store)
    await sweep_once(client, config, store)
    await compact_once(client, config, store)
    return config
