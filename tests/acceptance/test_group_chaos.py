"""The short form of `make chaos-groups`: real processes and a real server over TLS, each kind of fault, a control."""

import pytest
from group_chaos import WEIGHTS, Chaos, Options
from group_judge import judge

from natty.testing import NatsServer, ServerOptions


@pytest.fixture(scope="module")
def own_server(natty_tls, nats_server_binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("victim")
    with NatsServer(ServerOptions(), folder=folder, tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


@pytest.mark.long
@pytest.mark.parametrize("auto", [False, True], ids=["named", "automatic"])
async def test_nothing_is_lost_and_each_key_keeps_its_order_whatever_happens(own_server, natty_name, tmp_path, auto):
    options = Options(messages=3000, faults=7, every=0.5, auto=auto, rate=2500, weights={**WEIGHTS, "stop": 3})
    chaos = Chaos(own_server, tmp_path, natty_name("CHAOS"), options)
    verdict = await chaos.run()
    print(verdict, dict(chaos.faults))
    assert verdict.wrongs == []
    assert verdict.begun_again <= 100 * sum(chaos.faults.values())


def test_the_judge_sees_what_is_wrong(tmp_path):
    def log(name, *lines):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        return tmp_path / name

    second = 1_000_000_000
    logs = {
        "a": log("a", f"S {second} k0 0", f"E {3 * second} k0 0", f"S {4 * second} k0 2", f"E {5 * second} k0 2"),
        "b": log("b", f"S {2 * second} k0 1", f"E {6 * second} k0 1", f"S {8 * second} k1 0"),
    }
    verdict = judge(logs, {"b": 9 * second}, {"k0": 3, "k1": 1}, 2.0)
    assert verdict.lost == ["k1 0"]
    assert verdict.unordered == ["k0: 1 after 2"]
    assert len(verdict.together) == 2
    with (tmp_path / "b").open("a") as more:
        more.write(f"P {6 * second} {4 * second}\nO {6 * second} 1\n")
    verdict = judge(logs, {}, {"k0": 3}, 2.0)
    assert (verdict.together, verdict.overlaps, verdict.overran) == ([], 1, 1)
