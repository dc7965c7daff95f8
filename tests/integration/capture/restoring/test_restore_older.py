"""Servers before 2.15 keep sequences, and say the rest in headers; any server can be replayed to."""

import pytest
from patient import NEVER, PATIENT
from restoring import (
    LEVEL,
    Capturing,
    configured,
    delete,
    dumped,
    floor_of,
    planned,
    read_some,
    restored,
    send,
)
from servers import old_server

from capture.config.permissions import Role, permissions
from capture.errors import RestoreError
from capture.restoring import replay as replay_module
from capture.restoring.replay import Pace, replay, write_origin
from natty import Natty, PublishError, WrongLastSequenceError
from natty.config.units import parse_time
from natty.testing import NatsServer, ServerOptions
from natty.wire.message import parse_headers

ROLLUP = b"NATS/1.0\r\nNats-Rollup: all\r\nColour: red\r\nColour: \r\nNats-TTL: 1h\r\n\r\n"


@pytest.fixture(scope="module", params=["2.10.25", "2.14.6"])
def older_server(request, natty_tls, tmp_path_factory):
    program = old_server(request.param)
    with NatsServer(folder=tmp_path_factory.mktemp("older"), tls_files=natty_tls, binary=program) as server:
        yield server


@pytest.fixture
async def older(older_server):
    async with Natty(**older_server.connect_options(), **PATIENT) as client:
        yield client


@pytest.fixture
async def captured(natty, natty_name, tmp_path):
    """A stream from sequence 3 to 12, with gaps, and a consumer that is done with 5."""
    name = natty_name("older")
    await natty.ensure_stream(name, subjects=[f"{name}.>"], allow_rollup_hdrs=True, allow_msg_ttl=True, max_msgs=100)
    captured = Capturing(natty, name, tmp_path)
    for number in range(1, 13):
        headers = ROLLUP if number == 2 else b"NATS/1.0\r\nNats-TTL: 1h\r\nA: b\r\n\r\n" if number == 5 else b""
        await send(natty, f"{name}.{number % 3}", b"%d\xff" % number, headers)
    await captured.capture()
    await natty.ensure_consumer(name, "reader", ack_wait=NEVER)
    assert await read_some(natty, name, "reader", 4) == [2, 3, 4, 5]
    await delete(natty, name, 2, 6, 7, 12)
    await captured.capture()
    return captured


async def test_an_older_server_gets_every_sequence_and_the_rest_in_headers(natty, older, captured):
    name = captured.stream
    state, messages = await dumped(natty, name)
    done = await restored(older, captured)
    again, found = await dumped(older, name)
    assert list(found) == list(messages) == [3, 4, 5, 8, 9, 10, 11]
    assert (again["first_seq"], again["last_seq"]) == (state["first_seq"], 12)
    for sequence, message in found.items():
        was = messages[sequence]
        assert (message["subject"], message["data"]) == (was["subject"], was["data"])
        headers = parse_headers((await older.jetstream.read(name, sequence=sequence)).header_block)
        assert headers["Capture-Stream"] == [name]
        assert headers["Capture-Sequence"] == [str(sequence)]
        assert parse_time(headers["Capture-Time"][0]) == parse_time(was["time"])
        assert not [one for one in headers if one.startswith("Nats-")]
        assert (headers.get("Capture-Nats-TTL"), headers.get("A")) == (
            (["1h"], ["b"]) if sequence == 5 else (None, None)
        )
    config, wanted = await configured(older, name), await configured(natty, name)
    assert {key: config.get(key) for key in ("subjects", "max_msgs", "allow_rollup_hdrs", "retention")} == {
        key: wanted.get(key) for key in ("subjects", "max_msgs", "allow_rollup_hdrs", "retention")
    }
    assert "subject_transform" not in config
    levels = {LEVEL: None}  # what an older server needs for it, if it knows of levels, is not what a newer one does
    assert config["metadata"] | levels == wanted["metadata"] | levels
    assert await read_some(older, name, "reader", 1) == [8]
    assert await floor_of(older, name, "capture") < 13
    assert await send(older, f"{name}.next") == 13
    said = "; ".join(done.not_kept)
    assert "the header Capture-Time says when it was" in said
    old = older.connection.server_version < (2, 11)
    assert ("settings that this server does not know: allow_msg_ttl" in said) == old


async def test_who_may_restore_by_the_printed_permissions_may_do_so_on_an_older_server(captured, natty_tls, tmp_path):
    block = permissions(Role.RESTORE, captured.config).block()
    users = f"authorization {{ users: [{{user: owner, password: x}}, {{user: restore, password: x, {block}}}] }}"
    options = ServerOptions(authorization=users)
    with NatsServer(options, folder=tmp_path / "nats", tls_files=natty_tls, binary=old_server("2.14.6")) as server:
        async with Natty(**server.connect_options(), **PATIENT, user="owner", password="x") as owner:
            await owner.election("any").prepare()
            async with Natty(**server.connect_options(), **PATIENT, user="restore", password="x") as natty:
                await restored(natty, captured)
                assert "Violation" not in server.log()
                plan = await planned(natty, captured)
                with pytest.raises(PublishError, match=f'not permitted: .*to "other.{captured.stream}'):
                    await replay(natty, plan, captured.store, "other")
            assert list((await dumped(owner, captured.stream))[1]) == [3, 4, 5, 8, 9, 10, 11]


async def test_what_an_older_server_refuses_leaves_nothing(older, captured, monkeypatch):
    monkeypatch.setattr(
        "capture.restoring.replay.write_origin",
        lambda *_: b"NATS/1.0\r\nNats-Expected-Last-Sequence: 1\r\n\r\n",
    )
    with pytest.raises(WrongLastSequenceError):
        await restored(older, captured)
    names = (await older.jetstream.request("STREAM.NAMES")).get("streams") or []
    assert captured.stream not in names


async def test_a_message_at_another_sequence_stops_it_at_once(older, captured, monkeypatch):
    begun = replay_module._initial_config
    monkeypatch.setattr(
        replay_module, "_initial_config", lambda *given: begun(*given) | {"first_seq": begun(*given)["first_seq"] + 1}
    )
    with pytest.raises(RestoreError, match="the server stored message"):
        await restored(older, captured)


async def test_a_stream_is_replayed_below_other_subjects_at_a_pace(natty, natty_name, captured):
    name, again = captured.stream, natty_name("again")
    await natty.ensure_stream(again, subjects=[f"{again}.>"])
    plan = await planned(natty, captured, replay=True)
    messages = (await dumped(natty, name))[1]
    clock, slept = [0.0], []

    async def sleep(seconds):
        slept.append(seconds)
        clock[0] += seconds

    done = await replay(natty, plan, captured.store, again, pace=Pace(speed=2.0), clock=lambda: clock[0], sleep=sleep)
    assert done.messages == len(messages)
    times = [parse_time(message["time"]) for message in messages.values()]
    assert sum(slept) == pytest.approx((times[-1] - times[0]) / 1e9 / 2, abs=1e-6)
    found = (await dumped(natty, again))[1]
    assert [one["subject"] for one in found.values()] == [f"{again}.{one['subject']}" for one in messages.values()]
    assert [one["data"] for one in found.values()] == [one["data"] for one in messages.values()]
    with pytest.raises(PublishError, match="no stream takes 'nowhere"):
        await replay(natty, plan, captured.store, "nowhere")


def test_headers_that_act_on_a_server_are_renamed_and_the_others_stay_as_they_were():
    block = write_origin(
        "S", 7, 1_795_230_000_000_000_001, b"NATS/1.0\r\nnats-ttl: 1s\r\nA: Nats-B\r\nE:\r\nX: \xff\r\n\r\n"
    )
    assert block == (
        b"NATS/1.0\r\nCapture-nats-ttl: 1s\r\nA: Nats-B\r\nE:\r\nX: \xff\r\n"
        b"Capture-Stream: S\r\nCapture-Sequence: 7\r\nCapture-Time: 2026-11-21T03:00:00.000000001Z\r\n\r\n"
    )
    assert write_origin("S", 1, 0, None).startswith(b"NATS/1.0\r\nCapture-Stream: S\r\n")
    assert write_origin("S", 1, 0, b"NATS/1.0\r\nA: b").startswith(b"NATS/1.0\r\nA: b\r\nCapture-Stream: S\r\n")
