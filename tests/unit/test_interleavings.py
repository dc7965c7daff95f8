"""Two sweepers, two compactors, writers and readers on one archive, killed and paused between any two of their steps.

A seed is a schedule; more with INTERLEAVINGS=100000.
"""

import asyncio
import os
from random import Random

import pytest
from archive_world import World

from capture.table import unforgotten

SEEDS = int(os.environ.get("INTERLEAVINGS", "200"))
AT_ONCE = 20
STEPS = 600


async def lived(seed):
    world = World(Random(seed))
    try:
        await world.run(STEPS)
        picture, rows = await world.settle()
        assert world.acked <= rows, f"lost: {sorted(world.acked - rows)}"
        assert unforgotten(picture.table, picture.manifest) == []
        assert picture.manifest.retired == []
        left = await world.store.list("blocks/") + await world.store.list("table/")
        assert {one.path for one in left} == {one.path for one in picture.files}
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, after {len(world.trace)} steps: {error}") from error
    finally:
        await world.close()
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_acknowledged_message_is_seen_once_and_never_lost(first):
    pictures = 0
    for seed in range(first, first + AT_ONCE):
        pictures += asyncio.run(lived(seed)).pictures
    assert pictures > AT_ONCE
