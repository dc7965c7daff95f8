"""Strikes at nodes that run pipelines: the tables are those of one clean batch run."""

import asyncio

import pytest
from pipeline_chaos import Options, play
from pipeline_chaos_faults import KINDS, PHASES, schedule

from natty.testing import NatsServer

pytestmark = [pytest.mark.spark]


def test_a_schedule_has_each_kind_and_each_phase_and_is_the_same_for_a_seed():
    struck = schedule(100, seed=1)
    assert struck == schedule(100, seed=1) != schedule(100, seed=2)
    assert {kind for kind, _ in struck} == set(KINDS)
    assert {phase for _, phase in struck} == set(PHASES)


async def test_after_strikes_at_each_phase_the_tables_are_those_of_one_clean_run(
    natty_tls, nats_server_binary, tmp_path
):
    struck = (
        ("leader", "iceberg"),
        ("jvm", "now"),
        ("stop", "files"),
        ("server", "document"),
        ("unwritable", "start"),
        ("leader", "committed"),
    )
    said = []
    with NatsServer(folder=tmp_path / "nats", tls_files=natty_tls, binary=nats_server_binary) as server:
        async with asyncio.timeout(840):
            outcome = await play(server, tmp_path, Options(struck=struck, grace=6.0), said.append)
    assert not outcome.wrongs, "\n".join([outcome.summary(), *outcome.wrongs, *said])
    assert outcome.played.total() == len(struck)
