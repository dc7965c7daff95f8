"""A program for a test: its Spark session ends with an error of the data source, which it catches outside or not."""

import sys

from pyspark.errors import AnalysisException

from capture.spark.options import SparkOptions
from capture.spark.session import start


def main():
    try:
        with start(SparkOptions(master="local[1]", queries=True)) as spark:
            spark.read.format("jetstream").option("streem", "ORDERS").option("archive", "lake").load().count()
    except AnalysisException as error:
        print(str(error).splitlines()[-1])
        if "raise" in sys.argv:
            raise


if __name__ == "__main__":
    main()
