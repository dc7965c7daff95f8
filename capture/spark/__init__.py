"""Spark as the engine of compactions and queries."""

from capture.spark.client import SparkDriver, unavailable
from capture.spark.options import SparkOptions
from capture.spark.protocol import Pong, Rows, View

__all__ = ["SparkDriver", "SparkOptions", "Pong", "Rows", "View", "unavailable"]
