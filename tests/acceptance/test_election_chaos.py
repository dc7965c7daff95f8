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
    assert history.faults.total() == faults
    assert history.wrongs() == []
    assert history.overlaps() == 0
    assert len(history.of("elected")) > 3  # it was about something
    assert history.of("committed")


async def test_no_fault_lets_a_deposed_leader_act_or_commit(own_server, natty_name, capsys):
    async with Chaos([own_server], name="job", bucket=natty_name("chaos")) as chaos:
        await chaos.strike(SINGLE, every=0.11)
        await chaos.settle()
    judge(chaos.history, SINGLE, capsys)


async def test_no_fault_of_a_cluster_lets_a_deposed_leader_act_or_commit(nats_cluster, natty_name, capsys):
    weights = WEIGHTS | {"step_down": 6, "server": 0}  # the session's cluster: other tests need its servers
    async with Chaos(nats_cluster, name="job", bucket=natty_name("chaos"), lease=0.5) as chaos:
        await chaos.strike(CLUSTER, weights, every=0.11)
        await chaos.settle()
    judge(chaos.history, CLUSTER, capsys)


async def test_the_same_harness_sees_two_leaders_of_the_ancestor(own_server, natty_name, capsys):
    """Control: blind renewals and work that nobody stops. A harness that finds nothing here proves nothing above."""
    async with Chaos([own_server], name="job", bucket=natty_name("old"), lease=0.4, kind="ancestor") as chaos:
        async with asyncio.timeout(60):
            while not chaos.history.overlaps():
                await chaos.strike(5, {"stop": 3, "hold": 1}, every=0.5)
    with capsys.disabled():
        print(f"\n  the ancestor: {chaos.history.summary()}; {chaos.history.overlaps()} overlaps")
    assert chaos.history.overlaps() > 0
