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


@pytest.mark.parametrize("auto", [False, True], ids=["named", "automatic"])
async def test_nothing_is_lost_and_each_key_keeps_its_order_whatever_happens(own_server, natty_name, tmp_path, auto):
    options = Options(messages=3000, faults=7, every=0.5, auto=auto, rate=2500, weights={**WEIGHTS, "stop": 3})
    chaos = Chaos(own_server, tmp_path, natty_name("CHAOS"), options)
    verdict = await chaos.run()
    print(verdict, dict(chaos.faults))
    assert verdict.wrongs == []


async def test_the_same_harness_finds_out_members_that_lose_acks_without_a_fault(own_server, natty_name, tmp_path):
    options = Options(messages=6000, faults=6, every=0.5, rate=1000, weights={"edit": 1}, forgetful=True)
    verdict = await Chaos(own_server, tmp_path, natty_name("CHAOS"), options).run()
    print(verdict)
    assert verdict.again
    assert (verdict.lost, verdict.unordered) == ([], [])


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


SECOND = 1_000_000_000
DONE = [f"S {1 * SECOND} k0 0", f"E {2 * SECOND} k0 0"]
HAVE_ACK = f"F {3 * SECOND} {int(2.5 * SECOND)}"


@pytest.mark.parametrize(
    ("lines", "losses", "excused"),
    [
        ([*DONE, HAVE_ACK], {}, False),
        (DONE, {}, False),  # it never heard that the ack had come, and lost nothing
        (DONE, {"killed": {"a"}}, True),
        ([*DONE, HAVE_ACK], {"killed": {"a"}}, False),  # the ack was there before
        ([*DONE, f"F {3 * SECOND} {SECOND}"], {"killed": {"a"}}, True),  # other acks were
        ([*DONE, f"L {int(3.5 * SECOND)} standby"], {}, True),
        ([*DONE, HAVE_ACK, f"L {6 * SECOND} standby"], {}, False),  # it was pinned until two seconds before
        ([*DONE, f"P {4 * SECOND} {3 * SECOND}"], {}, True),
        ([DONE[0], f"C {2 * SECOND} k0 0"], {}, True),
        ([*DONE], {"outages": [(int(1.5 * SECOND), 4 * SECOND)]}, True),
        ([*DONE, HAVE_ACK], {"outages": [(8 * SECOND, 9 * SECOND)]}, False),
    ],
)
def test_a_message_is_begun_once_more_only_where_it_was_in_flight_at_a_loss(tmp_path, lines, losses, excused):
    logs = {"a": tmp_path / "a", "b": tmp_path / "b"}
    logs["a"].write_text("".join(f"{line}\n" for line in lines))
    logs["b"].write_text(f"S {5 * SECOND} k0 0\nE {6 * SECOND} k0 0\n")
    verdict = judge(logs, {"a": int(4.5 * SECOND)}, {"k0": 1}, 2.0, **losses)
    assert verdict.again == ([] if excused else ["k0: 0 in b after a"])


@pytest.mark.parametrize(("paused", "excused"), [(3, True), (1, False)])
def test_a_message_is_begun_once_more_by_a_process_that_was_paused_when_it_began(tmp_path, paused, excused):
    logs = {"a": tmp_path / "a", "b": tmp_path / "b"}
    logs["a"].write_text("".join(f"{line}\n" for line in [*DONE, HAVE_ACK]))
    logs["b"].write_text(f"S {5 * SECOND} k0 0\nP {5 * SECOND + 1} {paused * SECOND}\nE {6 * SECOND} k0 0\n")
    verdict = judge(logs, {}, {"k0": 1}, 2.0)
    assert verdict.again == ([] if excused else ["k0: 0 in b after a"])


def test_one_loss_excuses_one_more_beginning_each_time_that_it_is_in_flight(tmp_path):
    logs = {name: tmp_path / name for name in "abc"}
    logs["a"].write_text(f"S {1 * SECOND} k0 0\n")
    logs["b"].write_text(f"S {5 * SECOND} k0 0\nE {6 * SECOND} k0 0\n")
    logs["c"].write_text(f"S {8 * SECOND} k0 0\nE {9 * SECOND} k0 0\n")
    verdict = judge(logs, {"a": 2 * SECOND}, {"k0": 1}, 2.0, killed={"a"})
    assert verdict.again == ["k0: 0 in c after b"]
    assert verdict.losses == 1
