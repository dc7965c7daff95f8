"""Spans around what is published and handled, and W3C trace context through message headers, by OpenTelemetry.

Active only if the application has set a tracer provider; otherwise OpenTelemetry is not imported.
Names and attributes follow OpenTelemetry's semantic conventions for messaging; span names hold no subjects.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from natty.errors import legible
from natty.wire.message import Headers, Message

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, Tracer

Inject = Callable[[Headers], Headers]
"""Adds the trace context to headers, unless they carry one of their own."""

_UNTRACED: AbstractContextManager[Inject] = nullcontext(lambda headers: headers)


def trace_send(subject: str, *, messages: int = 1) -> AbstractContextManager[Inject]:
    """Return the span of a publish: a context manager whose value adds the trace context to headers."""
    tracer = _tracer()
    return _UNTRACED if tracer is None else _trace_send(tracer, subject, messages)


@contextmanager
def _trace_send(tracer: Tracer, subject: str, messages: int) -> Iterator[Inject]:
    attributes = _operation("publish", "send", subject)
    if messages > 1:
        attributes["messaging.batch.message_count"] = messages
    with _span(tracer, "publish", "PRODUCER", attributes):
        yield _inject


def trace_create(stream: str) -> Callable[[str, Headers | None], Headers] | None:
    """Return a function of (subject, headers) that makes a span and returns headers with it, for publishers.

    None if the application does not trace.
    """
    tracer = _tracer()
    if tracer is None:
        return None

    def create(subject: str, headers: Headers | None) -> Headers:
        attributes = _operation("create", "create", subject) | {"messaging.nats.stream": stream}
        with _span(tracer, f"create {stream}", "PRODUCER", attributes):
            return _inject(headers or {})

    return create


def trace_process(
    call: Callable[[list[Message]], Awaitable[object]], stream: str, durable: str
) -> Callable[[list[Message]], Awaitable[object]]:
    """Return the call of a handler within a span, linked to the spans that its messages were published in.

    The span of a single message is also a child of its publisher's span. Returns `call` if the application does not
    trace.
    """
    tracer = _tracer()
    if tracer is None:
        return call
    of_all = {"messaging.consumer.group.name": durable, "messaging.nats.stream": stream}

    async def process(messages: list[Message]) -> None:
        origins = [_origin(message) for message in messages]
        links = [link for link in origins if link is not None]
        if len(messages) == 1:
            attributes = _operation("process", "process", messages[0].subject) | _of(messages[0])
        else:
            attributes = _operation("process", "process") | {"messaging.batch.message_count": len(messages)}
        parent = links[0] if links and len(messages) == 1 else None
        with _span(tracer, f"process {stream}", "CONSUMER", attributes | of_all, links, parent):
            await call(messages)

    return process


def log_fields() -> dict[str, str]:
    """Return `trace_id` and `span_id` of the span that is active here; empty if there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    context = trace and trace.get_current_span().get_span_context()
    if not context or not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def _tracer() -> Tracer | None:
    """Return our tracer, or None if the application has set no provider, for which it would have to import the API."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    tracer: Tracer = provider.get_tracer("natty")
    return tracer


def _operation(name: str, kind: str, subject: str = "") -> dict[str, Any]:
    known = {"messaging.system": "nats", "messaging.operation.name": name, "messaging.operation.type": kind}
    return known | ({"messaging.destination.name": legible(subject)} if subject else {})


def _of(message: Message) -> dict[str, Any]:
    known = {"messaging.message.body.size": len(message.data), "messaging.nats.sequence": message.sequence}
    return known | ({"messaging.message.id": legible(message.msg_id)} if message.msg_id else {})


@contextmanager
def _span(
    tracer: Tracer,
    name: str,
    kind: str,
    attributes: dict[str, Any],
    links: list[Link] | None = None,
    parent: Link | None = None,
) -> Iterator[Span]:
    """The current span meanwhile; an error ends it as failed."""
    from opentelemetry import trace

    context = None
    if parent is not None:
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent.context))
    with tracer.start_as_current_span(name, context, trace.SpanKind[kind], attributes=attributes, links=links) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            if not isinstance(error, Exception):  # a cancellation, which OpenTelemetry takes for no failure
                span.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise


def _inject(headers: Headers) -> Headers:
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    own = {name.lower() for name in headers}
    return headers if own & {name.lower() for name in carrier} else {**headers, **carrier}


def _origin(message: Message) -> Link | None:
    """Return a link to the span that a message was published in."""
    from opentelemetry import context, propagate, trace

    headers = {name.lower(): values for name, values in message.headers.items()}  # Go's carriers write Traceparent
    sent = trace.get_current_span(propagate.extract(headers, context.Context())).get_span_context()
    return trace.Link(sent) if sent.is_valid else None
