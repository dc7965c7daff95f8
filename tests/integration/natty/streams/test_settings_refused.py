"""Settings and consumers that can't serve are refused by a sentence, whether the stream exists or not."""

import pytest
from consuming import fill

from natty.errors import ConfigError


@pytest.fixture
async def pushed(natty, natty_name):
    """A stream with messages and a push consumer `p`, as another client makes it."""
    stream = await fill(natty, natty_name("PUSH"), 3)
    config = {"durable_name": "p", "name": "p", "deliver_subject": f"to.{stream}", "ack_policy": "explicit"}
    body = {"stream_name": stream, "config": config}
    await natty.jetstream.request(f"CONSUMER.DURABLE.CREATE.{stream}.p", body)
    return stream


@pytest.mark.parametrize("method", ["create_consumer", "ensure_consumer"])
async def test_no_push_consumer_is_made_or_taken_for_ours(natty, pushed, method):
    with pytest.raises(ConfigError, match="deliver_subject is a setting of push consumers"):
        await getattr(natty, method)(pushed, "new", deliver_subject="x.y")
    with pytest.raises(ConfigError, match=f"consumer p of stream {pushed} is a push consumer, it sends .* to to"):
        await getattr(natty, method)(pushed, "p", ack_wait=30.0)
    assert await natty.jetstream.request(f"CONSUMER.NAMES.{pushed}") | {"consumers": ["p"]}


async def test_a_push_consumer_can_not_be_consumed_or_pulled(natty, pushed, caplog):
    async def handle(message):
        raise AssertionError(message)

    with pytest.raises(ConfigError, match="is a push consumer"):
        await natty.consume(pushed, "p", handle)
    with pytest.raises(ConfigError, match=f"consumer {pushed}/p is a push consumer, .* create one"):
        async for _ in natty.pull(pushed, "p"):
            pass
    assert caplog.text.count("409") <= 1


@pytest.mark.parametrize("method", ["create_stream", "ensure_stream"])
@pytest.mark.parametrize(
    ("given", "said"),
    [({"subject": "a"}, "did you mean subjects"), ({"max_age": "soon"}, "max_age is 'soon', and must be seconds")],
)
async def test_a_stream_is_not_made_or_changed_by_what_can_not_be_meant(natty, natty_name, method, given, said):
    name = natty_name("S")
    with pytest.raises(ConfigError, match=f"stream {name}: .*{said}"):
        await getattr(natty, method)(name, **given)
    await natty.create_stream(name, subjects=[f"{name}.>"], max_age="7d", max_bytes="1MiB")
    with pytest.raises(ConfigError, match=said):
        await getattr(natty, method)(name, **given)
    config = (await natty.jetstream.request(f"STREAM.INFO.{name}"))["config"]
    assert (config["max_age"], config["max_bytes"]) == (604_800 * 10**9, 2**20)
    await natty.ensure_stream(name, max_age="8d")
    with pytest.raises(ConfigError, match="did you mean ack_wait"):
        await natty.ensure_consumer(name, "c", ack_wiat=5)
    assert (await natty.create_consumer(name, "c", ack_wait="5s"))["ack_wait"] == 5 * 10**9


async def test_a_bucket_takes_units_as_a_stream_does(natty, natty_name):
    bucket = await natty.create_bucket(natty_name("B"), max_bytes="1MiB")
    config = (await natty.jetstream.request(f"STREAM.INFO.{bucket.stream}"))["config"]
    assert config["max_bytes"] == 2**20
    with pytest.raises(ConfigError, match="did you mean max_bytes"):
        await natty.create_bucket(natty_name("B"), max_byte=5)
