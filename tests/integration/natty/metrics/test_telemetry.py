"""Metrics and readiness of real work, and the HTTP that serves them."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
from electing import LONG, vacated
from patient import NEVER, PATIENCE, PATIENT
from prometheus_client.parser import text_string_to_metric_families

from natty import ConfigError, Natty, PublishError
from natty.elections import work_loop
from natty.metrics import http, telemetry
from natty.metrics.http import serve_pages
from natty.metrics.pages import Answer

QUICK = {"heartbeat": 0.4, "expires": 1.0}  # seconds: a stall shows after two heartbeats
ANY = "127.0.0.1:0"
LARGE = 64 * 1024 * 1024  # bytes: no socket takes that without a reader


async def talk(port, request):
    """Send raw bytes; return (status, headers, body) of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    line, *fields = head.decode().split("\r\n")
    return int(line.split()[1]), dict(field.split(": ", 1) for field in fields), body


async def get(port, path, method="GET"):
    return await talk(port, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


async def taken(reader):
    """Read to the end, an orderly one or not; return how many bytes came."""
    count = 0
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE):
            while some := await reader.read(1 << 20):
                count += len(some)
    return count


async def figures(port):
    """Scrape; return {(name, label values, sorted by name): value}."""
    status, _, body = await get(port, "/metrics")
    assert status == 200
    families = text_string_to_metric_families(body.decode())
    samples = [one for family in families for one in family.samples]
    return {(one.name, *(value for _, value in sorted(one.labels.items()))): one.value for one in samples}


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not (answer := await condition()):
            await asyncio.sleep(0.02)
    return answer


# The HTTP.


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Clients that come late are no slow clients, unless a test says so."""
    monkeypatch.setattr(http, "PAGE_TIMEOUT", NEVER)


@pytest.fixture
async def port():
    def fail():
        raise RuntimeError("a page with a fault")

    async with serve_pages(ANY, {"/page": lambda: Answer(b"text"), "/fail": fail}) as port:
        yield port


async def test_a_page_is_served(port):
    status, headers, body = await get(port, "/page?with=query")
    assert (status, body) == (200, b"text")
    assert headers["Content-Length"] == "4"
    assert headers["Connection"] == "close"


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        (b"/page?a=http://b/c", (200, b"text")),
        (b"http://localhost:80/page?a", (200, b"text")),
        (b"/../page", (404, b"404 Not Found\n")),
        (b"/page/", (404, b"404 Not Found\n")),
        (b"//page", (404, b"404 Not Found\n")),
    ],
)
async def test_a_target_names_a_page_by_its_path(target, answer):
    async with serve_pages(ANY, {"/page": lambda: Answer(b"text")}) as port:
        status, _, body = await talk(port, b"GET " + target + b" HTTP/1.1\r\nHost:\t localhost \r\nX-Empty:\r\n\r\n")
    assert (status, body) == answer


async def test_head_is_the_same_without_the_body(port):
    status, headers, body = await get(port, "/page", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, "4", b"")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /page HTTP/1.0\r\n\r\n", 200),
        (b"GET http://localhost/page HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"POST /page HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi", 405),
        (b"GET /page HTTP/1.1\r\n\r\n", 400),  # no host
        (b"GET /page HTTP/1.1\r\nHost: localhost\r\nHost: there\r\n\r\n", 400),
        (b"GET /page HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
        (b"GET /page HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
        (b"GET /a page HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /\xe4 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /page HTTP/2.0\r\nHost: localhost\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00 a TLS hello\r\n\r\n", 400),
        (b"GET /page HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /fail HTTP/1.1\r\nHost: localhost\r\n\r\n", 500),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_every_request_gets_its_answer(port, request_, status):
    answered, headers, body = await talk(port, request_)
    assert answered == status
    assert int(headers["Content-Length"]) == len(body)
    assert (headers.get("Allow") == "GET, HEAD") is (status == 405)
    assert (await get(port, "/page"))[0] == 200


async def test_a_client_that_sends_half_a_request_is_answered_when_it_ends(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /page HT")
    writer.write_eof()
    async with asyncio.timeout(PATIENCE):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_a_slow_client_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(http, "PAGE_TIMEOUT", 0.1)
    async with serve_pages(ANY, {}) as port:
        status, headers, body = await talk(port, b"GET /page HTTP/1.1\r\nHost: he")
    assert (status, headers["Connection"], body) == (408, "close", b"408 Request Timeout\n")


async def test_a_client_that_ends_its_side_gets_the_answer(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n")
    writer.write_eof()
    async with asyncio.timeout(PATIENCE):
        assert (await reader.read()).endswith(b"text")
    writer.close()


async def test_no_answer_names_the_versions_that_run_here(port):
    for path in ("/page", "/none", "/fail"):
        assert (await get(port, path))[1]["Server"] == "natty"


async def test_a_client_that_never_reads_is_cut_off(monkeypatch):
    monkeypatch.setattr(http, "PAGE_TIMEOUT", 0.2)
    async with serve_pages(ANY, {"/large": lambda: Answer(bytes(LARGE))}) as port:
        before = len(asyncio.all_tasks())
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: asyncio.sleep(0, len(asyncio.all_tasks()) > before))
        await until(lambda: asyncio.sleep(0, len(asyncio.all_tasks()) == before))
        assert await taken(reader) < LARGE
        writer.close()


async def test_leaving_the_block_closes_what_is_open():
    async with serve_pages(ANY, {}) as port:
        before = len(asyncio.all_tasks())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /")
        await until(lambda: asyncio.sleep(0, len(asyncio.all_tasks()) > before))
    assert await taken(reader) == 0
    writer.close()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)


@pytest.mark.parametrize("address", ["9100", "localhost", "127.0.0.1:http", "127.0.0.1:99999", ""])
async def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match="not an address to serve on"):
        async with serve_pages(address, {}):
            pass


async def test_an_address_in_use_is_refused(port):
    with pytest.raises(ConfigError, match=f"cannot serve on 127.0.0.1:{port}: another program uses that port; choose"):
        async with serve_pages(f"127.0.0.1:{port}", {}):
            pass


# What is served.


@asynccontextmanager
async def reading(pull):
    """Read a pull, and give its credit back."""

    async def read():
        async for batch in pull:
            pull.ack(batch.replies)
            pull.finish(len(batch))

    task = asyncio.create_task(read())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_a_handler_and_publishers_did_is_shown(natty, natty_name, start):
    name = natty_name("SHOWN")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    for _ in range(2):
        async with natty.publisher(name, path="window", ack_timeout=PATIENCE) as publisher:
            for number in range(10):
                await publisher.publish(f"{name}.x", b"%d" % number, msg_id=f"{number}")

    async def handle(message):
        if message.data == b"3" or (message.data == b"4" and message.deliveries == 1):
            raise ValueError("one that fails")

    async with telemetry.serve(natty, ANY) as port:
        consumption, _ = start(name, handle, retries=[0.01])
        await until(lambda: asyncio.sleep(0, consumption.handled + consumption.buried == 10))
        shown = await figures(port)
        consumption.stop()
        await until(lambda: asyncio.sleep(0, repr(natty.connection.observed) == "Observed(0 parts)"))
        after = await figures(port)
    assert shown["natty_connected",] == 1
    assert shown["natty_publish_messages_total", "stored", name] == 20
    assert shown["natty_publish_messages_total", "failed", name] == 0
    assert shown["natty_publish_duplicates_total", name] == 10
    assert shown["natty_publish_waiting", name] == 0
    for figures_ in (shown, after):
        assert figures_["natty_handler_messages_total", "d", "handled", name] == 9
        assert figures_["natty_handler_messages_total", "d", "failed", name] == 3
        assert figures_["natty_handler_retries_total", "d", name] == 2
        assert figures_["natty_handler_dead_letters_total", "d", name] == 1
        assert figures_["natty_pull_messages_total", "d", name] == 12
        assert figures_["natty_pull_redeliveries_total", "d", name] == 2
        assert figures_["natty_pull_bytes_total", "d", name] > 12
        assert figures_["natty_pull_requests_total", "d", name] >= 1
        assert figures_["natty_pull_renewals_total", "d", name] == 0
        assert figures_["natty_pull_stalled", "d", name] == 0


async def test_no_label_is_a_subject(natty, natty_name, start):
    name = natty_name("LABELS")
    await natty.ensure_stream(name, subjects=[f"{name}.*"])
    async with telemetry.serve(natty, ANY) as port:
        consumption, _ = start(name, lambda message: None)
        await natty.publish_async(f"{name}.subject", b"", msg_id="1")
        await until(lambda: asyncio.sleep(0, consumption.handled == 1))
        _, _, body = await get(port, "/metrics")
    assert name.encode() in body
    assert b"subject" not in body


async def test_a_failed_message_of_a_publisher_is_shown(natty, natty_name):
    name = natty_name("FULL")
    await natty.ensure_stream(name, subjects=[f"{name}.*"], max_msgs=1, discard="new")
    failures = []
    async with telemetry.serve(natty, ANY) as port:
        async with natty.publisher(name, path="window", ack_timeout=PATIENCE, on_error=failures.append) as publisher:
            for _ in range(3):
                await publisher.publish(f"{name}.x", b"")
        shown = await figures(port)
    assert repr(natty.connection.observed) == "Observed(0 parts)"
    assert len(failures) == 2
    assert shown["natty_publish_messages_total", "stored", name] == 1
    assert shown["natty_publish_messages_total", "failed", name] == 2


async def test_the_leader_is_shown_while_it_leads(natty, natty_name):
    name = await vacated(natty, natty_name("duty"))
    async with telemetry.serve(natty, ANY) as port:
        async with natty.leader(name, lease=LONG):
            assert (await figures(port))["natty_leader", name] == 1
        after = await figures(port)
    assert repr(natty.connection.observed) == "Observed(0 parts)"
    assert after["natty_leader", name] == 0
    assert after["natty_leader_terms_total", name] == 1


async def test_the_runs_of_repeated_work_are_counted_and_stay_counted(natty, natty_name, monkeypatch, running):
    monkeypatch.setattr(work_loop, "FIRST_PAUSE", 0.001)
    name, runs = await vacated(natty, natty_name("loop")), []

    async def work(term):
        runs.append(term)
        if len(runs) == 1:
            raise RuntimeError("the first fails")

    async with telemetry.serve(natty, ANY) as port:
        campaign = running(natty.election(name, lease=LONG, every=NEVER).run(work))
        await until(lambda: asyncio.sleep(0, len(runs) == 2))
        campaign.cancel()
        await asyncio.gather(campaign, return_exceptions=True)
        shown = await figures(port)
    assert shown["natty_leader_runs_total", name, "failed"] == 1
    assert shown["natty_leader_runs_total", name, "succeeded"] == 1


async def test_readiness_and_metrics_tell_a_stall_and_its_end(natty_proxy, natty, natty_name):
    name = natty_name("STALL")
    await natty.ensure_stream(name, subjects=[f"{name}.>"])
    await natty.ensure_consumer(name, "d")
    async with Natty(**natty_proxy.options, **PATIENT) as far, telemetry.serve(far, ANY) as port:
        pulls = partial(far.connection.observed.totals, telemetry.PULL)
        async with reading(far.pull(name, "d", **QUICK)):
            await until(lambda: asyncio.sleep(0, telemetry.not_ready(far) == [] and (name, "d") in pulls()))
            natty_proxy.hold()

            async def stalled():
                status, headers, body = await get(port, "/readyz")
                return status == 503 and (headers["Content-Type"], json.loads(body))

            kind, body = await until(stalled)
            assert kind == "application/json"
            assert body["ready"] is False
            assert body["reasons"][0].startswith(f"pull of {name}/d stalled since 2")
            assert (await figures(port))["natty_pull_stalled", "d", name] == 1
            assert (await figures(port))["natty_connected",] == 1
            assert (await get(port, "/livez"))[0] == 200
            natty_proxy.release()

            async def ready():
                status, _, body = await get(port, "/readyz")
                return status == 200 and json.loads(body)

            assert await until(ready) == {"ready": True, "reasons": []}

            async def told():
                return (await figures(port))["natty_pull_stalled", "d", name] == 0

            await until(told)


async def test_readiness_and_metrics_tell_a_lost_connection_and_its_return(natty_proxy):
    async with Natty(**natty_proxy.options, **PATIENT) as far, telemetry.serve(far, ANY) as port:
        await natty_proxy.cut()

        async def cut():
            status, _, body = await get(port, "/readyz")
            return status == 503 and json.loads(body)["reasons"]

        assert await until(cut) == ["not connected: the connection is disconnected"]
        assert (await figures(port))["natty_connected",] == 0
        await natty_proxy.restore()

        async def ready():
            return (await get(port, "/readyz"))[0] == 200

        await until(ready)
        assert (await figures(port))["natty_reconnects_total",] == 1


async def test_a_message_that_no_stream_takes_is_shown_as_failed_by_each_way_to_publish(natty, natty_name):
    nowhere = natty_name("nowhere")
    at_once = partial(natty.publish, timeout=1.0)  # which asks again for so long
    for count, publish in enumerate((at_once, natty.publish_async), 1):
        with pytest.raises(PublishError, match="no stream takes"):
            await publish(nowhere, b"")
        async with telemetry.serve(natty, ANY) as port:
            shown = await figures(port)
        assert shown["natty_publish_messages_total", "failed", ""] == count
    assert natty.outbox.counts == {"stored": 0, "failed": 1, "duplicates": 0}
