"""A cron job that is run by one of many nodes: start this on each of them. A missed run is made up for, once."""

import asyncio
import logging

from natty import Term, as_leader

logging.basicConfig(level=logging.INFO)


@as_leader("example-nightly", cron="0 3 * * *", timezone="Europe/Berlin")
async def report(term: Term) -> None:
    print("the report of the night, by", term.node, flush=True)


asyncio.run(report())
