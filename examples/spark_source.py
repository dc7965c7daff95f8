"""Counts the orders of a stream by subject on Spark, and publishes the counts to another stream.

The connection is what NATS_URL, NATS_CA, NATS_CERT and NATS_KEY say, here and in Spark's workers.
Needs: the extra spark (docs/installing.md)
"""

import asyncio
import warnings

from capture.spark.options import SparkOptions
from capture.spark.session import start
from natty import Natty

ORDERS, COUNTS = "EXAMPLE_SPARK_ORDERS", "EXAMPLE_COUNTS"

warnings.filterwarnings("ignore", category=FutureWarning)  # pyspark's, about pandas, which is not used here


async def prepare() -> None:
    async with Natty() as natty:
        await natty.ensure_stream(ORDERS, subjects=["example.spark.*"], allow_direct=True)
        await natty.ensure_stream(COUNTS, subjects=["example.counts.>"], allow_direct=True)
        for number in range(10):
            await natty.publish(f"example.spark.{('eu', 'us')[number % 2]}", b"an order", msg_id=f"order-{number}")


def count() -> None:
    with start(SparkOptions(master="local[2]")) as spark:
        orders = spark.read.format("jetstream").option("stream", ORDERS).load()
        counts = orders.groupBy("subject").count().orderBy("subject")
        for row in counts.collect():
            print(f"{row['count']} orders on {row['subject']}")
        messages = counts.selectExpr("concat('example.counts.', subject) AS subject", "to_json(struct(*)) AS payload")
        messages.write.format("jetstream").option("stream", COUNTS).mode("append").save()
        published = spark.read.format("jetstream").option("stream", COUNTS).load()
        print(f"{published.count()} counts in {COUNTS}")


if __name__ == "__main__":
    asyncio.run(prepare())
    count()
    print("stopped")
