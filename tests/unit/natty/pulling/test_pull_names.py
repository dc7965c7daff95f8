import pytest

from natty import Natty
from natty.errors import BadSubjectError
from natty.names import BadNameError


@pytest.mark.parametrize(
    ("stream", "durable"), [("", "d"), ("s", ""), ("s.t", "d"), ("s", "a.b"), ("s", "*"), ("s", "a\nb")]
)
@pytest.mark.parametrize("make", [Natty.pull, Natty.consume])
def test_a_stream_or_consumer_that_none_can_be_called_is_refused_at_the_call(make, stream, durable):
    with pytest.raises(BadNameError):
        make(Natty("nats://localhost:1"), stream, durable)


@pytest.mark.parametrize("subject", ["", "STREAM.INFO.", "CONSUMER.INFO..d"])
async def test_the_api_is_asked_about_nothing_without_a_name(subject):
    with pytest.raises(BadSubjectError, match="has an empty name"):
        await Natty("nats://localhost:1").jetstream.request(subject)
