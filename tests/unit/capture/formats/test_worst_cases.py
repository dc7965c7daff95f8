"""Text from outside takes time in proportion to its length: with a pattern that backtracks, these would take hours."""

import pytest

from capture.spark.failure import sentence
from natty.config.settings import redact
from natty.config.units import parse_duration
from natty.errors import BadGroupError
from natty.groups.rules import check_partitioned

SIZE = 16 * 1024  # twice what a server takes
TIMES = 100


@pytest.mark.timeout(120)
def test_text_of_others_is_read_in_a_moment():
    for _ in range(TIMES):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration("1" * SIZE + "x")
        assert redact("/" * SIZE) == "/" * SIZE
        assert sentence(RuntimeError(" " * SIZE)) == repr(RuntimeError(" " * SIZE))
        with pytest.raises(BadGroupError, match="holds no subject of partition 0"):
            check_partitioned("S", {"subject_transform": {"dest": "{{" * (SIZE // 2)}}, 1)
