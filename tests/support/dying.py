"""A capture node that is killed right after the store has taken an object."""

DIES = """
import asyncio, os, signal, sys
from pathlib import Path
from capture.config.load import load
from capture.node.node import Node

config, prefix, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
node, puts = Node(load(config)), 0
put = node.store.put

async def put_and_die(path, data, **options):
    global puts
    await put(path, data, **options)
    puts += path.startswith(prefix)
    if puts == at:
        os.kill(os.getpid(), signal.SIGKILL)

node.store.put = put_and_die
asyncio.run(node.run())
"""
"""Its arguments: the configuration, the prefix of the objects' paths, and the number of the object at which it dies."""
