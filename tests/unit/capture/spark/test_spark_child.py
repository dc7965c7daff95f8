"""What a log says of a Java that did not come up."""

import pytest

from capture.spark.child import _first_words

NOTE = "NOTE: Picked up JDK_JAVA_OPTIONS: -Xint\n"
WARNED = "2026-11-22 08:24:15 WARN Utils: Set SPARK_LOCAL_IP\n"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("Invalid maximum heap size: -Xmxlots\nError: Could not create it.\n", "Invalid maximum heap size: -Xmxlots"),
        (f"{NOTE}Error: no such class\n", "no such class"),
        (f'{WARNED}Exception in thread "main" org.apache.spark.SparkException: no such mode\n\tat x\n', "no such mode"),
        (f"{WARNED}Container id: 1\nExit code: 127\n", ""),  # the second line of what was warned of
        ("2026-11-22 08:24:15 ERROR SparkContext: no\njava.io.IOException\n", ""),
        ("Traceback (most recent call last):\n", ""),
        ("", ""),
    ],
)
def test_only_what_java_itself_says_is_told(log, said, tmp_path):
    (tmp_path / "log").write_text("of an earlier start\n" + log)
    assert _first_words(tmp_path / "log", len("of an earlier start\n")) == said
