"""Spans and trace context between publishers and handlers, over a real server."""

import asyncio
import json
import logging
from contextvars import copy_context

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from patient import NEVER, PATIENCE

from natty import AtomicMessage, PublishError
from natty.cli.run import LogFormat, configure_logging
from natty.wire import tracing

OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch):
    """Where the spans of this test go: only here is there a provider, which OpenTelemetry lets nobody replace."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


@pytest.fixture
async def stream(natty, natty_name):
    name = natty_name("TRACED")
    await natty.ensure_stream(name, subjects=[f"{name}.*"], allow_atomic=True)
    return name


def named(spans, name):
    return [span for span in spans.get_finished_spans() if span.name == name]


async def until_named(spans, name, count):
    """Wait for so many spans of a name to end."""
    async with asyncio.timeout(PATIENCE):
        while len(found := named(spans, name)) < count:
            await asyncio.sleep(0.02)
    assert len(found) == count
    return found


async def stored(natty, stream, sequence):
    """Return the headers of a stored message."""
    return (await natty.jetstream.read(stream, sequence=sequence)).headers


def traceparent(span):
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


async def test_a_handler_continues_the_trace_of_the_publisher(natty, stream, spans, start):
    await natty.publish(f"{stream}.x", b"body", msg_id="m-1", headers={"Mine": "kept"})
    start(stream, lambda message: None)
    (consumer,) = await until_named(spans, f"process {stream}", 1)
    (producer,) = named(spans, "publish")
    headers = await stored(natty, stream, 1)
    assert headers["traceparent"] == [traceparent(producer)]
    assert headers["Mine"] == ["kept"]
    assert (producer.kind, consumer.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert consumer.parent.span_id == producer.context.span_id
    assert consumer.context.trace_id == producer.context.trace_id
    assert [link.context.span_id for link in consumer.links] == [producer.context.span_id]
    assert dict(producer.attributes) == {
        "messaging.system": "nats",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": f"{stream}.x",
    }
    assert dict(consumer.attributes) == {
        "messaging.system": "nats",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": f"{stream}.x",
        "messaging.consumer.group.name": "d",
        "messaging.message.id": "m-1",
        "messaging.message.body.size": 4,
        "messaging.nats.stream": stream,
        "messaging.nats.sequence": 1,
    }
    assert consumer.status.status_code is StatusCode.UNSET


async def test_each_message_of_a_publisher_has_a_span(natty, stream, spans):
    async with natty.publisher(stream, ack_timeout=PATIENCE) as publisher:
        await publisher.publish(f"{stream}.x", b"")
        await publisher.publish(f"{stream}.y", b"", headers={"Mine": "kept"})
    await natty.publish_async(f"{stream}.z", b"", msg_id="1")
    await natty.flush_publishers()
    created = named(spans, f"create {stream}")
    assert [span.attributes["messaging.destination.name"] for span in created] == [f"{stream}.{one}" for one in "xyz"]
    assert {span.kind for span in created} == {SpanKind.PRODUCER}
    for sequence, span in enumerate(created, start=1):
        assert (await stored(natty, stream, sequence))["traceparent"] == [traceparent(span)]
    assert (await stored(natty, stream, 2))["Mine"] == ["kept"]


async def test_an_atomic_batch_is_one_span(natty, stream, spans):
    await natty.publish_atomic([(f"{stream}.x", b"1"), AtomicMessage(subject=f"{stream}.y", headers={"Mine": "kept"})])
    (span,) = named(spans, "publish")
    assert span.attributes["messaging.batch.message_count"] == 2
    for sequence in (1, 2):
        assert (await stored(natty, stream, sequence))["traceparent"] == [traceparent(span)]
    assert (await stored(natty, stream, 2))["Mine"] == ["kept"]


async def test_a_batch_of_a_handler_is_one_span_with_a_link_for_each_message(natty, stream, spans, start):
    for number in range(3):
        await natty.publish(f"{stream}.{number}", b"")
    start(stream, lambda messages: None, batch=3, batch_wait=NEVER)
    (consumer,) = await until_named(spans, f"process {stream}", 1)
    producers = named(spans, "publish")
    assert len({span.context.trace_id for span in producers}) == 3
    assert [link.context.span_id for link in consumer.links] == [span.context.span_id for span in producers]
    assert consumer.parent is None
    assert consumer.attributes["messaging.batch.message_count"] == 3


async def test_the_callers_own_context_is_never_overwritten(natty, stream, spans, start):
    for name in ("traceparent", "Traceparent"):
        await natty.publish(f"{stream}.x", b"", headers={name: OWN})
        async with natty.publisher(stream, ack_timeout=PATIENCE) as publisher:
            await publisher.publish(f"{stream}.x", b"", headers={name: OWN})
        await natty.publish_atomic([AtomicMessage(subject=f"{stream}.x", headers={name: OWN})])
    for sequence in range(1, 7):
        headers = await stored(natty, stream, sequence)
        assert [values for name, values in headers.items() if name.lower() == "traceparent"] == [[OWN]]
    start(stream, lambda message: None)
    for span in await until_named(spans, f"process {stream}", 6):
        assert f"{span.links[0].context.trace_id:032x}" in OWN
        assert f"{span.parent.span_id:016x}" in OWN


async def test_a_failure_ends_the_span_as_failed_and_the_retry_has_its_own(natty, stream, spans, start):
    async def handle(message):
        if message.deliveries == 1:
            raise LookupError("no such order")
        if message.deliveries == 2:
            await asyncio.sleep(NEVER)

    await natty.publish(f"{stream}.x", b"")
    start(stream, handle, retries=[0.01, 0.01], timeout=0.1)
    failed, late, good = await until_named(spans, f"process {stream}", 3)
    assert failed.status.status_code is StatusCode.ERROR
    assert "no such order" in failed.status.description
    assert [event.attributes["exception.type"] for event in failed.events] == ["LookupError"]
    assert failed.attributes["error.type"] == "LookupError"
    assert late.attributes["error.type"] == "HandlerTimeoutError"
    assert good.status.status_code is StatusCode.UNSET


async def test_a_handler_that_is_cut_short_has_failed(spans):
    async def call(messages):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await tracing.trace_process(call, "S", "d")([])
    (span,) = named(spans, "process S")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "CancelledError"


async def test_a_publish_that_fails_ends_its_span_as_failed(natty, natty_name, spans):
    stream = natty_name("SMALL")
    await natty.ensure_stream(stream, subjects=[stream], max_msg_size=1)
    with pytest.raises(PublishError, match="message size exceeds"):
        await natty.publish(stream, b"too large")
    (span,) = named(spans, "publish")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "PublishError"


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_what_a_handler_does_belongs_to_its_span(natty, stream, spans, start, kind):
    tracer = trace.get_tracer_provider().get_tracer("the application")

    def work(message):
        with tracer.start_as_current_span("work"):
            pass

    async def work_async(message):
        work(message)

    await natty.publish(f"{stream}.x", b"")
    start(stream, work_async if kind == "async" else work)
    (consumer,) = await until_named(spans, f"process {stream}", 1)
    (inner,) = named(spans, "work")
    assert inner.parent.span_id == consumer.context.span_id


async def test_a_span_leaves_no_context_behind(spans):
    async def call(messages):
        assert trace.get_current_span().get_span_context().is_valid

    before = copy_context()
    await tracing.trace_process(call, "S", "d")([])
    assert copy_context() == before  # a worker whose context has changed would be replaced after every message
    assert named(spans, "process S")


@pytest.mark.parametrize("provider", [trace.ProxyTracerProvider(), trace.NoOpTracerProvider()], ids=["unset", "no-op"])
async def test_without_a_provider_nothing_is_traced(natty, stream, monkeypatch, provider):
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    async def call(messages):
        pass

    assert tracing.trace_process(call, "S", "d") is call
    assert tracing.trace_create("S") is None
    await natty.publish(f"{stream}.x", b"")
    await natty.publish_atomic([(f"{stream}.x", b"")])
    assert await stored(natty, stream, 1) == {}
    assert "traceparent" not in await stored(natty, stream, 2)


async def test_json_logs_name_the_active_span(spans, capsys):
    ours = logging.getLogger("natty.test")
    configure_logging(form=LogFormat.JSON)
    with trace.get_tracer_provider().get_tracer("t").start_as_current_span("active") as span:
        ours.info("inside", extra={"action": "a"})
    ours.info("outside", extra={"action": "b"})
    inside, outside = map(json.loads, capsys.readouterr().err.splitlines())
    assert inside["action"] == "a"
    assert f"-{inside['trace_id']}-{inside['span_id']}-" in traceparent(span)
    assert outside.keys() == {"time", "level", "logger", "message", "action"}
