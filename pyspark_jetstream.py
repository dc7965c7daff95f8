"""How Spark finds the data source `jetstream`: it looks into every module whose name begins with `pyspark_`.

It imports them all, whichever source is asked for, and one that fails would take all others with it: nothing is loaded
here until Spark asks for the class, and where pyarrow is missing there is just no such source.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from capture.spark.jetstream import DefaultSource
    except ImportError as error:
        raise AttributeError(f"the data source jetstream needs {error.name}") from error
    return DefaultSource
