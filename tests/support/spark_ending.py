"""A program for a test of the end of a session: prints whether Python daemons run before and at the end."""

import sys

from pyspark.sql import SparkSession

from capture.spark.options import SparkOptions
from capture.spark.session import start

IDLE_ENDED = "the session with idle workers has ended"


def has_daemons(spark):
    return not spark.sparkContext._jvm.java.lang.ProcessHandle.current().children().toList().isEmpty()


def main():
    stop = SparkSession.stop

    def counted(spark):
        print(has_daemons(spark))
        stop(spark)

    with start(SparkOptions(master="local[1]")) as spark:
        spark.sparkContext.range(10).map(str).count()
        print(has_daemons(spark))
        SparkSession.stop = counted
    print(IDLE_ENDED, file=sys.stderr, flush=True)

    with start(SparkOptions(master="local[1]")) as spark:
        spark.sparkContext.range(10).map(str).count()
        spark.readStream.format("rate").load().writeStream.format("noop").start()

    SparkSession.stop = stop
    with start(SparkOptions(master="local[1]")) as spark:
        spark.stop()
    print("ended")


if __name__ == "__main__":
    main()
