"""The store over many compactions. `make soak-table` runs 500 of them and prints the figures."""

import pytest
from table_soak import BRIEF, grown, soak


@pytest.mark.long
async def test_what_lies_in_the_store_does_not_grow_once_every_rule_has_let_something_go():
    world, measured = await soak(72, rules=BRIEF)
    assert world.crashes == 10
    assert measured[-1].removed, "retention has removed nothing"
    assert grown(measured, BRIEF.horizon) == {}


@pytest.mark.long
async def test_nor_does_it_over_many_runs_of_longer_rules():
    world, measured = await soak(240)
    assert world.crashes == 34
    assert world.tokens > 10
    assert grown(measured, world.rules.horizon) == {}
    assert max(one.manifests for one in measured) <= 12
