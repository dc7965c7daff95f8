import asyncio
import contextlib

import pytest
from patient import NEVER, PATIENCE, PATIENT, until

from natty import AtomicMessage, Natty, PublishError, WrongLastSequenceError
from natty.errors import AuthorizationError, BadSubjectError, PayloadTooLargeError, UnsupportedError
from natty.publishing import atomic
from natty.testing import NatsServer, ServerOptions


@pytest.fixture
async def stream(natty, natty_name):
    """A stream that takes atomic batches, `<name>.>`."""
    return await make_stream(natty, natty_name("ATOM"))


async def make_stream(natty, name, **settings):
    await natty.ensure_stream(name, **{"subjects": [f"{name}.>"], "allow_atomic": True} | settings)
    return name


async def last_sequence(natty, stream):
    return (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["last_seq"]


async def stored(natty, stream):
    """Every (subject, payload) of a stream, in order."""
    found = []
    for sequence in range(1, await last_sequence(natty, stream) + 1):
        message = await natty.jetstream.read(stream, sequence=sequence)
        found.append((message.subject, message.data))
    return found


async def test_all_messages_are_stored_one_after_the_other(natty, stream):
    ack = await natty.publish_atomic(
        [
            (f"{stream}.a", b"1"),
            AtomicMessage(subject=f"{stream}.b", data=b"2", headers={"A": "b"}, msg_id="x"),
            (f"{stream}.a", b"3"),
        ]
    )
    assert (ack.stream, ack.seq) == (stream, 3)
    assert await stored(natty, stream) == [(f"{stream}.a", b"1"), (f"{stream}.b", b"2"), (f"{stream}.a", b"3")]
    second = await natty.jetstream.read(stream, sequence=2)
    assert (second.headers["A"], second.headers["Nats-Msg-Id"]) == (["b"], ["x"])


@pytest.mark.parametrize("count", [1, 1000])
async def test_the_smallest_and_the_largest_batch(natty, stream, count):
    ack = await natty.publish_atomic([(f"{stream}.{i}", b"") for i in range(count)])
    assert ack.seq == count == await last_sequence(natty, stream)


async def test_batches_published_at_the_same_time_do_not_mix(natty, stream):
    await asyncio.gather(
        *(natty.publish_atomic([(f"{stream}.{task}", b"%d" % i) for i in range(20)]) for task in range(20))
    )
    rows = await stored(natty, stream)
    assert len(rows) == 400
    for start in range(0, 400, 20):
        assert len({subject for subject, _ in rows[start : start + 20]}) == 1
        assert [int(data) for _, data in rows[start : start + 20]] == list(range(20))


async def test_expectations_hold_for_the_whole_batch(natty, stream):
    await natty.publish_atomic([(f"{stream}.a", b""), (f"{stream}.b", b"")], expect_last_sequence=0)
    good = AtomicMessage(subject=f"{stream}.b", expect_last_subject_sequence=2)
    await natty.publish_atomic([(f"{stream}.a", b""), good], expect_last_sequence=2)
    with pytest.raises(WrongLastSequenceError, match="no message of the batch was stored: wrong last sequence: 4"):
        await natty.publish_atomic([(f"{stream}.c", b""), good])
    with pytest.raises(WrongLastSequenceError):
        await natty.publish_atomic([(f"{stream}.c", b""), (f"{stream}.d", b"")], expect_last_sequence=1)
    with pytest.raises(PublishError, match=r"message 2 expects .*\.b, and message 1 of"):
        await natty.publish_atomic([(f"{stream}.b", b""), good])
    assert await last_sequence(natty, stream) == 4


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "a batch of 0 messages: a batch has 1 to 1000"),
        ([("S.a", b"")] * 1001, "a batch of 1001 messages: a batch has 1 to 1000"),
        (
            [("S.a", b""), ("OTHER.b", b""), ("S.c", b"")],
            "message 2 on .*OTHER.* is not for stream .*: a batch goes to one",
        ),
        ([("S.a", b""), ("nowhere.b", b""), ("S.c", b"")], "message 2 on nowhere.b is not for stream"),
        ([("S.a", b""), ("S.b", b""), ("nowhere.c", b"")], "message 3 on nowhere.c is not for stream"),
        ([("nowhere.a", b""), ("S.c", b"")], "no stream takes 'nowhere.a': create one"),
        ([("PLAIN.a", b""), ("PLAIN.b", b"")], "stream .*PLAIN.* does not accept atomic batches: set allow_atomic"),
        ([("PLAIN.a", b"")], "stream .*PLAIN.* does not accept atomic batches: set allow_atomic"),
        (
            [AtomicMessage(subject="S.a", msg_id="1"), AtomicMessage(subject="S.b", msg_id="1")],
            "a message id is in it twice, or in the stream already",
        ),
        ([("S.a", b""), AtomicMessage(subject="S.b", ttl=5)], "per-message TTL is disabled; set allow_msg_ttl"),
        ([("S.a", b""), AtomicMessage(subject="S.b", headers={"Nats-Rollup": "sub"})], "rollup not permitted"),
        ([("S.a", b"")] * 3 + [("S.b", b"")] * 3, "maximum messages exceeded"),
    ],
)
async def test_a_refusal_says_why_and_stores_nothing(natty, natty_name, messages, reason, monkeypatch):
    monkeypatch.setattr(atomic, "RETRY_DELAY", NEVER)  # so the first answer is the last that can be waited for
    settings = {"max_msgs": 5, "discard": "new"}
    stream = await make_stream(natty, natty_name("S"), **settings)
    other = await make_stream(natty, natty_name("OTHER"))
    plain = await make_stream(natty, natty_name("PLAIN"), allow_atomic=False)

    def renamed(subject):
        first, _, rest = subject.partition(".")
        return f"{ {'S': stream, 'OTHER': other, 'PLAIN': plain}.get(first, first) }.{rest}"

    batch = [
        AtomicMessage(subject=renamed(one.subject), msg_id=one.msg_id, ttl=one.ttl, headers=one.headers)
        if isinstance(one, AtomicMessage)
        else (renamed(one[0]), one[1])
        for one in messages
    ]
    with pytest.raises(PublishError, match=reason) as caught:
        await natty.publish_atomic(batch)
    assert not caught.value.in_doubt
    for name in (stream, other, plain):
        assert await last_sequence(natty, name) == 0
    await natty.publish_atomic([(f"{stream}.a", b""), (f"{stream}.b", b"")])  # and nothing is in the way of the next


async def test_bad_input_is_refused_before_anything_is_sent(natty, stream):
    with pytest.raises(PayloadTooLargeError, match=rf"message 2 of the batch, .* on {stream}.b, is over .* 1048576"):
        await natty.publish_atomic([(f"{stream}.a", b""), (f"{stream}.b", b"x" * 1_100_000)])
    with pytest.raises(BadSubjectError):
        await natty.publish_atomic([(f"{stream}.a", b""), ("a b", b"")])
    natty.connection._session.info = natty.connection.server_info | {"version": "2.11.4"}
    with pytest.raises(UnsupportedError, match=r"an atomic batch needs nats-server 2\.12 or later"):
        await natty.publish_atomic([(f"{stream}.a", b"")])
    assert await last_sequence(natty, stream) == 0


@pytest.fixture
async def strict(natty_tls, nats_server_binary, tmp_path):
    """A client of a server that allows a stream five unfinished batches, for two minutes instead of ten seconds."""
    limits = 'limits { batch { max_inflight_per_stream: 5, timeout: "120s" } }'
    options = ServerOptions(jetstream=False, config=f'jetstream {{ store_dir: "{tmp_path}/store", {limits} }}')
    with NatsServer(options, folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            yield natty


async def test_too_many_unfinished_batches_are_waited_for_and_then_explained(strict, monkeypatch):
    natty, stream = strict, await make_stream(strict, "S")
    real_commit, gate, begun = atomic._commit, asyncio.Event(), asyncio.Semaphore(0)

    async def late_commit(*arguments):
        begun.release()
        await gate.wait()
        return await real_commit(*arguments)

    monkeypatch.setattr(atomic, "_commit", late_commit)
    batch = [(f"{stream}.a", b""), (f"{stream}.b", b"")]
    unfinished = [asyncio.create_task(natty.publish_atomic(batch)) for _ in range(5)]
    async with asyncio.timeout(PATIENCE):
        for _ in unfinished:
            await begun.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "RETRY_DELAY", NEVER)  # so the first answer is the last that can be waited for
        with pytest.raises(PublishError, match="too many unfinished batches: try again"):
            await natty.publish_atomic(batch)
    waiting = asyncio.create_task(natty.publish_atomic(batch))
    gate.set()
    await asyncio.gather(*unfinished, waiting)
    assert await last_sequence(natty, stream) == 2 * 6


async def test_what_is_not_permitted_is_named(natty_tls, nats_server_binary, tmp_path):
    users = 'authorization { users: [{user: u, password: p, permissions: {publish: {deny: ["S.secret", "S.own"]}}}] }'
    with NatsServer(
        ServerOptions(authorization=users), folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary
    ) as server:
        async with Natty(**server.connect_options(), user="u", password="p", **PATIENT) as natty:
            await make_stream(natty, "S")
            with pytest.raises(PublishError, match=r"no message of the batch was stored: not permitted: .*S\.secret"):
                await natty.publish_atomic([("S.a", b""), ("S.secret", b""), ("S.b", b"")])
            for place in (0, 2):
                batch = [("S.a", b""), ("S.b", b"")]
                batch.insert(place, ("S.own", b""))
                with pytest.raises(AuthorizationError, match=r"S\.own"):
                    await natty.publish_atomic(batch)
            assert await last_sequence(natty, "S") == 0


async def test_a_server_killed_in_the_middle_leaves_whole_batches_or_nothing(natty_tls, nats_server_binary, tmp_path):
    acknowledged = set()
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            await make_stream(natty, "S")
            killed = asyncio.Event()

            async def publish(task):
                number = 0
                while not killed.is_set():
                    name, number = f"{task}-{number}", number + 1
                    with contextlib.suppress(Exception):
                        batch = [("S.a", b"%s %d" % (name.encode(), i)) for i in range(50)]
                        await natty.publish_atomic(batch)
                        acknowledged.add(name)

            tasks = [asyncio.create_task(publish(task)) for task in range(5)]
            await until(lambda: len(acknowledged) >= 20)
            await asyncio.to_thread(server.kill)
            killed.set()
            await asyncio.to_thread(server.start)
            await asyncio.gather(*tasks)
            await natty.connection.ready(PATIENCE)
            parts = {}
            for _, data in await stored(natty, "S"):
                name, _, part = data.partition(b" ")
                parts.setdefault(name.decode(), []).append(int(part))
    assert all(numbers == list(range(50)) for numbers in parts.values())
    assert acknowledged <= set(parts)
