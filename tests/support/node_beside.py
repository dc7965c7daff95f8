"""Capture nodes in the test's own process, over the test's connections."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from patient import PATIENCE

from capture.config.load import load
from capture.config.streams import each
from capture.node.node import Node
from natty.wire.background import cancel_all


class Running:
    """A node in this process."""

    def __init__(self, node, work):
        self.node = node
        self.task = asyncio.ensure_future(work)

    async def ended(self):
        async with asyncio.timeout(PATIENCE):
            await self.task

    async def stop(self):
        self.node.stop()
        await self.ended()


@asynccontextmanager
async def running_here(node):
    """Run a node, or several; in the end it is told to stop, and must end well."""
    run = asyncio.create_task(node.run())
    try:
        yield node
        node.stop()
        async with asyncio.timeout(PATIENCE):
            await run
    finally:
        await cancel_all([run])


@pytest.fixture
async def start_beside(fleet, monkeypatch):
    """Start a node in this process with `start_beside(path, natty)`; cancel nodes that still run at the end."""
    for limit in (
        "capture.ingest.source.END_TIMEOUT",
        "natty.pulling.pull.DRAIN_TIMEOUT",
        "natty.wire.connection.CLOSE_TIMEOUT",
    ):
        monkeypatch.setattr(limit, PATIENCE)
    running = []

    def begin(path, natty=None):
        node = Node(*each(load(path)))
        running.append(Running(node, node.run_beside(natty or fleet.natty)))
        return running[-1]

    yield begin
    for one in running:
        one.task.cancel()
    await asyncio.gather(*(one.task for one in running), return_exceptions=True)
