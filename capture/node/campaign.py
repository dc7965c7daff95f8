"""Candidates for a leader's tasks: a node stands for election for as long as it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from natty import Election, NattyError, Term, UnsupportedError

RETRY_DUTY = 5.0  # seconds before a candidate whose task or campaign failed campaigns again

log = logging.getLogger("capture.node")


async def campaign(election: Election, work: Callable[[Term], Awaitable[None]]) -> None:
    """Be a candidate until cancelled; `work` is called with each term that this node leads.

    A failing task, or a failing election, is logged, and the campaign starts again after RETRY_DUTY seconds. It returns
    only if the server can't hold elections.
    """
    name, failure = election.options.name, ""

    async def serve(term: Term) -> None:
        nonlocal failure
        failure = ""
        await work(term)

    while True:
        try:
            await election.run(serve)
        except UnsupportedError as error:
            log.error("this node is not a candidate for %s: %s", name, error, extra={"action": "no_leader"})
            return
        except NattyError as error:
            if str(error) != failure:  # log it once while it lasts, for example a missing permission
                log.error("the campaign for %s failed: %s", name, error, extra={"action": "campaign_failed"})
            failure = str(error)
        except Exception:
            log.exception("the work of the leader of %s failed", name, extra={"action": "duty_failed"})
        await asyncio.sleep(RETRY_DUTY)
