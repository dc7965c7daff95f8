"""The short form of `make chaos-election`: real processes, real servers over TLS, 300 faults and a control."""

import asyncio

import pytest
from election_chaos import WEIGHTS, Chaos

from natty.testing import NatsServer

SINGLE, CLUSTER = 230, 70  # faults


@pytest.fixture
def own_server(natty_tls, nats_server_binary, tmp_path):
    with NatsServer(folder=tmp_path / "nats", tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


def judge(history, faults, capsys):
    with capsys.disabled():
        print(f"\n  {history.summary()}; wrong: {len(history.wrongs())}")
    assert history.faults.total() >= faults
    assert history.faults["roll_back"] == history.lives - 1  # each was played to its end
    assert history.wrongs() == []
    assert history.overlaps() == 0


async def about_something(chaos, weights):
    """Strike on until there were terms enough to be judged: where each takes long to begin, faults may outrun them."""
    await chaos.settle()
    while len(chaos.history.of("elected")) <= 3 or not chaos.history.of("committed"):
        await chaos.strike(5, weights, every=1.0)
        await chaos.settle()


async def test_no_fault_lets_a_deposed_leader_act_or_commit(own_server, natty_name, capsys):
    async with Chaos([own_server], name="job", bucket=natty_name("chaos")) as chaos:
        await chaos.strike(SINGLE - 2, every=0.11)
        await chaos.strike(2, {"roll_back": 1}, every=0.11)
        await about_something(chaos, WEIGHTS)
    judge(chaos.history, SINGLE, capsys)


async def test_no_fault_of_a_cluster_lets_a_deposed_leader_act_or_commit(nats_cluster, natty_name, capsys):
    weights = WEIGHTS | {"step_down": 6, "server": 0, "roll_back": 0}  # other tests need the session's servers
    async with Chaos(nats_cluster, name="job", bucket=natty_name("chaos"), lease=0.5) as chaos:
        await chaos.strike(CLUSTER, weights, every=0.11)
        await about_something(chaos, weights)
    judge(chaos.history, CLUSTER, capsys)


async def test_the_same_harness_sees_two_leaders_of_the_ancestor(own_server, natty_name, capsys):
    """Control: blind renewals and work that nobody stops. A harness that finds nothing here proves nothing above."""
    async with Chaos([own_server], name="job", bucket=natty_name("old"), lease=0.4, kind="ancestor") as chaos:
        async with asyncio.timeout(150):
            while not chaos.history.overlaps():
                await chaos.strike(5, {"stop": 3, "hold": 1}, every=0.5)
    with capsys.disabled():
        print(f"\n  the ancestor: {chaos.history.summary()}; {chaos.history.overlaps()} overlaps")
    assert chaos.history.overlaps() > 0
