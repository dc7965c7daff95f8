"""What a node answers to probes."""

import asyncio
import json
from urllib.error import HTTPError
from urllib.request import urlopen

from patient import PATIENCE


def look(port, path):
    """Return what a probe is answered: the status, and the reasons or the text."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            status, body = answer.status, answer.read()
    except HTTPError as error:
        with error:
            status, body = error.code, error.read()
    return status, json.loads(body)["reasons"] if path == "/readyz" else body


async def ask(port, path="/readyz"):
    return await asyncio.to_thread(look, port, path)


async def until_ready(port):
    async with asyncio.timeout(PATIENCE):
        while (await ask(port)) != (200, []):
            await asyncio.sleep(0.05)
