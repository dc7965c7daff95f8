import re

from consuming import until
from group_members import LONG, has_state, publish
from prometheus_client import CollectorRegistry, generate_latest

from natty.groups.lag import lag
from natty.metrics.telemetry import collector


async def test_metrics_and_lag_show_a_member_at_work(natty, group, notes):
    notes.gate.clear()
    await publish(natty, group.stream, range(2))
    async with group.join("m1", notes.handler(), lag_every=0.05, **LONG) as m1:
        await until(lambda: notes.begun == 4)
        assert sum((await lag(natty.jetstream, group)).values()) == 16
        labels = f'{{group="g",member="m1",stream="{group.stream}"}}'
        assert figures(natty)[f"natty_group_pinned{labels}"] == 1
        assert figures(natty)[f"natty_group_partitions{labels}"] == 4
        await until(lambda: sum(lags(natty).values()) == 16)
        assert {partition: count for partition, count in lags(natty).items() if count} == {
            str(partition): count for partition, count in (await lag(natty.jetstream, group)).items() if count
        }
        notes.gate.set()
        await notes.have(16)
        await until(lambda: set(lags(natty).values()) == {0.0})
        await group.drop("m1")
        await has_state(m1, "outside")
        assert figures(natty)[f"natty_group_rebalances_total{labels}"] == 1
        assert figures(natty)[f"natty_group_hand_overs_total{labels}"] == 1
        assert figures(natty)[f"natty_group_hand_over_seconds_total{labels}"] > 0
    assert set((await lag(natty.jetstream, group)).values()) == {0}


def figures(natty):
    """Return what a scrape shows, by name and labels."""
    registry = CollectorRegistry()
    registry.register(collector(natty))
    lines = generate_latest(registry).decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def lags(natty):
    """Return natty_group_lag by partition."""
    found = {name: value for name, value in figures(natty).items() if name.startswith("natty_group_lag{")}
    return {re.search('partition="([^"]*)"', name)[1]: value for name, value in found.items()}
