"""A stream of twenty messages, the data source for it, and the rows that are read."""

from dataclasses import replace

import pyarrow as pa
from spark_jetstream import source_options

from capture.reading.direct_answers import list_sequences
from capture.reading.stream_range import stream_facts
from capture.spark.jetstream import DefaultSource
from capture.spark.jetstream.readers import ENVELOPE
from capture.spark.jetstream.splits import Range

WAYS = ["direct", "consumer"]


async def twenty_messages(natty, name):
    """Create the stream: odd and even messages have different subjects, each third has headers."""
    await natty.create_stream(name, subjects=[f"{name}.>"], allow_direct=True, allow_batched=True)
    for number in range(1, 21):
        headers = {"Number": str(number), "Nats-Stream": ["mine", "own"]} if number % 3 == 0 else None
        await natty.publish(f"{name}.{number % 2}", b"message %d" % number, headers=headers, msg_id=f"id-{number}")
    return name


def source_of(server, stream):
    """Return a function that makes the data source of that stream with given options."""
    given = source_options(server.connect_options(), stream)
    return lambda **options: DefaultSource(given | {name: str(value) for name, value in options.items()})


def rows_of(source, schema=ENVELOPE):
    reader = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def sequences_of(source):
    return [row["sequence"] for row in rows_of(source)]


async def whole_range(natty, stream, first=1, last=None, **changes):
    facts = await stream_facts(natty, stream)
    return Range(replace(facts, **changes), first, last or facts.last)


async def read(reader):
    return [sequence for rows in [each async for each in reader] for sequence in list_sequences(rows)]
