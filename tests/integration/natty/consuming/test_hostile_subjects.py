"""Subjects and headers that are not UTF-8, or hold control characters: handled, buried and retried like any other."""

import asyncio
import io
import logging
from contextlib import aclosing, suppress

import msgspec
import pytest
from consuming import until, until_settled
from hostile import TAILS, fill_hostile, publish_raw
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from natty import DeadLetterOptions, DeadLetters, StreamNotFoundError
from natty.cli.run import LogFormat, configure_logging
from natty.consuming.dead_letters.streams import GAVE_UP
from natty.groups import PartitioningFilter
from natty.names import decode, encode
from natty.pulling.ordered import Ordered
from natty.wire.message import Batch


@pytest.fixture
async def stream(natty, natty_name):
    """A stream with one message on each hostile subject."""
    name = natty_name("HOSTILE")
    await natty.create_stream(name, subjects=[f"{name}.>"])
    await fill_hostile(natty, name)
    return name


@pytest.fixture
def strict_log():
    """What is logged in this test, to a file that takes UTF-8 and nothing else."""
    log = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    handler = logging.StreamHandler(log)
    faults = []
    handler.handleError = faults.append
    logging.getLogger().addHandler(handler)
    yield log
    logging.getLogger().removeHandler(handler)
    assert faults == []


def subjects_of(stream):
    return [stream.encode() + b"." + tail for tail in TAILS]


def options(stream, **more):
    return {"dead_letters": DeadLetterOptions(letters=f"L_{stream}"), "retries": (0.02,)} | more


async def letters_of(natty, name, count):
    """Return so many letters, when they are there."""
    box, found = natty.dead_letters(f"L_{name}"), []

    async def there():
        with suppress(StreamNotFoundError):  # about to be made
            found[:] = [letter async for letter in box.ls()]
        return len(found) >= count

    await until(there)
    return found


async def stored_after(natty, stream, sequence, count):
    """Return the subjects, as delivered, of what is stored behind a sequence."""
    found = []
    async with aclosing(natty.pull(stream, "after").__aiter__()) as batches:
        async for batch in batches:
            found += [raw[0] for raw, one in zip(batch.raw, batch.sequences, strict=True) if one > sequence]
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("more", [{}, {"ordered_by": "subject", "concurrency": 4}, {"batch": 3}, {"retries": ()}])
@pytest.mark.parametrize("seen", [True, False])
async def test_what_fails_on_a_hostile_subject_becomes_a_letter_and_is_retried_onto_the_same_bytes(
    natty, stream, start, strict_log, more, seen
):
    async def fail(messages):
        for message in messages if isinstance(messages, list) else [messages]:
            logging.getLogger("test").warning("%r %s", message, message.headers if seen else "")
        raise RuntimeError(decode(b"no \xff\n"))

    consumption, task = start(stream, fail, **options(stream, **more))
    letters = await letters_of(natty, stream, len(TAILS))
    await until_settled(natty, stream)
    consumption.stop()
    await task
    assert sorted(encode(letter.subject) for letter in letters) == sorted(subjects_of(stream))
    assert all(letter.subject_known and letter.headers["X-\udcfe"] == ["\udcff \x1b[31m"] for letter in letters)
    result = await natty.dead_letters(f"L_{stream}").retry()
    assert (result.published, result.refused) == (len(TAILS), {})
    await natty.create_consumer(stream, "after")
    again = await stored_after(natty, stream, len(TAILS), len(TAILS))
    assert sorted(again) == sorted(subjects_of(stream))
    assert "RuntimeError" in strict_log.buffer.getvalue().decode()


async def test_what_succeeds_on_a_hostile_subject_is_acknowledged_and_can_be_published_on(natty, stream, start):
    copied = []

    async def copy(message):
        if message.sequence <= len(TAILS):
            copied.append(encode(message.subject))
            await natty.jetstream.publish(message.subject, message.data, verbatim=True)

    start(stream, copy, ordered_by="subject", concurrency=3)
    await until(lambda: len(copied) == len(TAILS))
    await until_settled(natty, stream)
    assert sorted(copied) == sorted(subjects_of(stream))
    assert (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]["messages"] == 2 * len(TAILS)


async def test_a_subject_that_is_not_utf8_can_be_published_on_as_it_was_received(natty, stream):
    ack = await natty.publish(decode(subjects_of(stream)[0]), b"again")
    await natty.create_consumer(stream, "after")
    assert await stored_after(natty, stream, ack.seq - 1, 1) == subjects_of(stream)[:1]


async def test_a_stream_is_read_in_order_whatever_its_subjects_are(natty, stream):
    got = []
    async with aclosing(Ordered(natty.jetstream, stream).__aiter__()) as steps:
        async for step in steps:
            if isinstance(step, Batch):
                got += [message.subject for message in step]
            if len(got) == len(TAILS):
                break
    assert [encode(subject) for subject in got] == subjects_of(stream)


@pytest.mark.parametrize("retention", ["limits", "interest"])
async def test_what_the_server_gave_up_on_has_its_subject_byte_for_byte(natty, natty_name, start, retention):
    name = natty_name("GIVEN_UP")
    await natty.create_stream(name, subjects=[f"{name}.>"], retention=retention)
    await natty.create_consumer(name, "d", ack_wait=0.2, max_deliver=1)
    held = asyncio.Event()

    async def hang(message):
        await held.wait()

    consumption, task = start(name, hang, keep_alive=False, concurrency=20, **options(name))
    subjects = await fill_hostile(natty, name)
    letters = await letters_of(natty, name, len(TAILS))
    held.set()
    consumption.stop()
    await task
    assert sorted(encode(letter.subject) for letter in letters) == sorted(subjects)
    assert all(letter.has_payload for letter in letters)


async def test_a_subject_that_the_server_does_not_tell_exactly_is_not_published_on(natty, natty_name):
    name = natty_name("QUEUE")
    dead = DeadLetters(natty.jetstream, DeadLetterOptions(letters=f"L_{name}"))
    await natty.create_stream(name, subjects=[f"{name}.>"], retention="workqueue")
    await natty.create_consumer(name, "d", ack_wait=0.2, max_deliver=1)
    await publish_raw(natty, name.encode() + b".\xff")
    async with dead.watch(name, "d"), aclosing(natty.pull(name, "d").__aiter__()) as batches:
        async for _ in batches:
            break
        (letter,) = await letters_of(natty, name, 1)
    assert (letter.subject, letter.subject_known) == (f"{name}.\ufffd", False)
    result = await natty.dead_letters(f"L_{name}").retry()
    assert (result.published, list(result.refused)) == (0, [letter.sequence])
    assert "not UTF-8" in result.refused[letter.sequence]


@pytest.mark.parametrize(
    "advisory",
    [
        b"\xff",
        b'{"reason": "\xff"}',
        b"[" * 100_000,
        b'{"type":"max_deliver","stream":"OTHER","consumer":"d","stream_seq":1,"timestamp":"2026-01-01T00:00:00Z"}',
    ],
)
async def test_a_forged_advisory_holds_up_nothing(natty, stream, advisory, caplog):
    dead = DeadLetters(natty.jetstream, DeadLetterOptions(letters=f"L_{stream}"))
    async with dead.watch(stream, "d"):
        await natty.publish(f"{GAVE_UP}.{stream}.d", advisory)
        real = {"type": "x.max_deliver", "stream": stream, "consumer": "d", "stream_seq": 1}
        late = real | {"timestamp": "2100-01-01T00:00:00Z", "deliveries": 10**18}
        await natty.publish(f"{GAVE_UP}.{stream}.d", msgspec.json.encode(late))
        (letter,) = await letters_of(natty, stream, 1)
    assert encode(letter.subject) == subjects_of(stream)[0]
    assert "an advisory can't be read" in caplog.text


async def test_a_message_that_is_no_letter_does_not_hide_the_others(natty, stream, start, caplog):
    async def fail(message):
        raise RuntimeError("no")

    consumption, task = start(stream, fail, **options(stream))
    await letters_of(natty, stream, len(TAILS))
    consumption.stop()
    await task
    await natty.publish(f"$NATTY.L_{stream}.{stream}.d.nonsense", b"")
    await natty.publish(f"$NATTY.L_{stream}.{stream}.d.1.x", b"", headers={"Natty-Dead-Deliveries": "\udcff"})
    assert len([letter async for letter in natty.dead_letters(f"L_{stream}").ls()]) == len(TAILS)
    assert caplog.text.count("of the dead letters, on") >= 2
    assert (await natty.dead_letters(f"L_{stream}").retry()).published == len(TAILS)


@pytest.mark.parametrize("ordered_by", ["partition", "subject"])
async def test_a_group_handles_buries_and_retries_hostile_subjects(natty, natty_name, strict_log, ordered_by):
    name, got = natty_name("HG"), []
    await natty.create_stream(name, subjects=[f"{name}.>"])
    tails = [tail for tail in TAILS if b"*" not in tail]  # of these the server makes no partition
    subjects = await fill_hostile(natty, name, b"k.", tails)
    group = natty.group(name, "g")
    await group.create(2, [PartitioningFilter(f"{name}.*.>", (1,))])
    await group.add("m")

    async def fail_once(message):
        got.append(encode(message.subject))
        if len(got) > 2 * len(tails):
            return
        logging.getLogger("test").warning("%r in %s", message, message.partition)
        raise RuntimeError(message.subject)

    async with group.join("m", fail_once, ordered_by=ordered_by, **options(name)):
        letters = await letters_of(natty, name, len(tails))
        assert sorted(encode(letter.subject) for letter in letters) == sorted(subjects)
        assert {letter.consumer for letter in letters} == {"g"}
        result = await natty.dead_letters(f"L_{name}").retry()
        assert (result.published, result.refused) == (len(tails), {})
        await until(lambda: len(got) == 3 * len(tails))
    assert sorted(got[2 * len(tails) :]) == sorted(subjects)


@pytest.mark.parametrize("form", list(LogFormat))
async def test_the_command_lines_log_takes_hostile_subjects(natty, stream, start, capfd, form):
    configure_logging(form=form)

    async def fail(message):
        raise RuntimeError(message.subject)

    start(stream, fail, **options(stream))
    await letters_of(natty, stream, len(TAILS))
    said = capfd.readouterr().err
    assert "Logging error" not in said
    assert "\x1b" not in said
    assert said.count("is a dead letter") == len(TAILS)


async def test_spans_of_hostile_messages_hold_text_that_every_exporter_takes(natty, stream, start, monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    handled = []

    async def handle(message):
        handled.append(message)

    start(stream, handle)
    await until(lambda: len(handled) == len(TAILS))
    await natty.publish(decode(subjects_of(stream)[0]), b"again")
    await until(lambda: len(exporter.get_finished_spans()) >= len(TAILS) + 2)
    told = [value for span in exporter.get_finished_spans() for value in span.attributes.values()]
    assert f"{stream}.\\xff\\xfe" in told
    assert r"\xff0" in told, "the message id"
    for value in told:
        str(value).encode()
