"""Averages of merged sums and counts, with the types and the digits of Spark's `avg`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from capture.pipelines.upkeep import HIDDEN, Merging

TOTAL, AVERAGE = f"{HIDDEN}TOTAL", f"{HIDDEN}AVERAGE"
"""Stand for the sum and the quotient of an average, whose types depend on the data: `settle_averages` replaces them."""


def settle_averages(merging: Merging, types: Mapping[str, str]) -> Merging:
    """Return queries that Spark can run: averages are those of Spark's `avg`, given the types of the states.

    Types are as in DDL: "bigint", "decimal(20,2)". Without them the queries have the types, and not the results.
    """

    def total(found: re.Match[str]) -> str:
        return "SUM(1D * " if types.get(found["name"]) == "bigint" else "SUM("  # avg adds whole numbers as doubles

    def average(found: re.Match[str]) -> str:
        kind = re.fullmatch(r"decimal\((\d+),(\d+)\)", types.get(found["total"], ""))
        if not kind:
            return f"try_divide({found['total']}, {found['count']})"
        return _divide_exactly(found["total"], found["count"], int(kind[1]), int(kind[2]))

    partial = re.sub(rf"{TOTAL}\((?=.*? AS `(?P<name>{HIDDEN}\d+)`)", total, merging.partial)
    texts = [
        re.sub(rf"{AVERAGE}\((?P<total>\w+), (?P<count>\w+)\)", average, one)
        for one in (merging.final, merging.final_with_states)
    ]
    return msgspec.structs.replace(merging, partial=partial, final=texts[0], final_with_states=texts[1])


def _divide_exactly(total: str, count: str, digits: int, scale: int) -> str:
    """Return the quotient of decimals, rounded once, as `avg` does: that of `/` has not enough digits for large sums.

    The whole part is divided apart from the rest, which is less than the count. No step needs more than 38 digits: with
    them, and many places, the whole part is one of 64 bits; Spark fails if it is larger.
    """
    before = digits - 10 if digits < 38 else 38  # the digits of what is added
    places = min(38, scale + 4)
    by = f"CAST(NULLIF({count}, 0) AS DECIMAL(12,0))"
    if digits == 38 and scale > 6:
        whole = f"CAST({total} DIV {by} AS DECIMAL(19,0))"
    else:
        size = max(1, min(38, before + 4, 37) - places)
        whole = f"CAST(({total} - {total} % {by}) / {by} AS DECIMAL({size},0))"
    rest = f"CAST({total} % {by} AS DECIMAL({min(38, 12 + scale)},{scale})) / {by}"
    digits = min(38, before + 4)
    return f"CAST({whole} + CAST({rest} AS DECIMAL({min(38, places + 1)},{places})) AS DECIMAL({digits},{places}))"
