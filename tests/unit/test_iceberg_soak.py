"""The store over many compactions. `make soak-table` runs 500 of them and prints the figures."""

import pytest
from table_soak import peaks, soak


@pytest.mark.long
async def test_what_lies_in_the_store_does_not_grow_for_ever():
    world, measured = await soak(200)
    assert world.crashes == 28
    assert world.tokens > 10
    for name, (_, second, _, last) in peaks(measured).items():
        assert last <= 1.25 * second, (name, second, last)
    assert max(one.manifests for one in measured) <= 12
