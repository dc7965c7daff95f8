"""The columns of the envelope are described once; everything else derives from the description, or is compared here."""

import ast
import json
import re
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest

from capture.archive.envelope_columns import COLUMNS, NAMES, NEEDED, Column, parse_origin
from capture.archive.readme import text
from capture.formats import envelope
from capture.formats.contract import sample_blocks
from capture.formats.csv import ENVELOPE
from capture.formats.envelope import EACH, SCHEMA, TYPES, messages_of, payload_column, to_records, to_table
from capture.formats.ndjson import lines
from capture.ingest.record import Records

ROOT = Path(__file__).parents[4]
DESCRIPTION = ROOT / "capture/archive/envelope_columns.py"
FILES = sorted(path for path in (ROOT / "capture").rglob("*.py") if path != DESCRIPTION)
LITERALS = (ast.List, ast.Tuple, ast.Set, ast.Dict)


def lists_of(tree: ast.AST, names: set[str]) -> list[int]:
    """Return the lines of the literals that hold three of these names or more, at any depth."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, LITERALS):
            texts = {
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
            if len(texts & names) >= 3:
                found.append(node.lineno)
    return found


def test_no_other_file_spells_the_list_of_the_columns() -> None:
    found = {str(path.relative_to(ROOT)): lists_of(ast.parse(path.read_text()), set(NAMES)) for path in FILES}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_search_for_such_lists_finds_them() -> None:
    for code in ("x = ['stream', 'sequence', 'time_ns']", "x = {'subject': 1, 'payload': 2, 'error': 3}"):
        assert lists_of(ast.parse(code), set(NAMES)) == [1]
    assert lists_of(ast.parse("x = f('stream', 'sequence', 'time_ns'), 'error'"), set(NAMES)) == [1]
    assert lists_of(ast.parse("x = ['stream', 'sequence']"), set(NAMES)) == []


def test_the_columns_of_format_1_do_not_change() -> None:
    """Files of every version are read by name; a column may be added behind these, and be null where it is missing."""
    assert [(field.name, str(field.type)) for field in SCHEMA][:13] == [
        ("stream", "string"),
        ("sequence", "int64"),
        ("time_ns", "int64"),
        ("subject", "string"),
        ("headers", "map<string, list<item: string>>"),
        ("header_block", "binary"),
        ("message_id", "string"),
        ("deliveries", "int32"),
        ("payload", "binary"),
        ("error", "string"),
        ("subject_raw", "binary"),
        ("origin_stream", "string"),
        ("origin_sequence", "int64"),
    ]
    assert all(one.is_late and one.nullable for one in COLUMNS[10:])


def test_each_column_is_made_from_a_field_of_records() -> None:
    assert {one.source for one in COLUMNS} <= {one.name for one in fields(Records)}


@pytest.mark.parametrize(("name", "block"), list(sample_blocks()))
def test_records_become_rows_and_rows_the_same_records(name: str, block: object) -> None:
    records = block.records  # type: ignore[attr-defined]
    (batch,) = to_table(records).combine_chunks().to_batches()
    found = to_records(batch.select(NEEDED))
    assert to_table(found).equals(to_table(records))
    assert (found.subjects, found.payloads, found.header_blocks) == (
        records.subjects,
        records.payloads,
        records.header_blocks,
    )
    assert list(messages_of(batch.select(EACH))) == [records[index] for index in range(len(records))]


@pytest.mark.parametrize(
    "payloads",
    [[], [b""], [b"x" * 511, b"y" * 513], [b"x" * 511, b"y" * 512], [b"", b"z" * 2000, b""], [memoryview(b"m" * 600)]],
)
def test_large_payloads_are_joined_to_the_same_column_as_small_ones(payloads: list[bytes]) -> None:
    column = payload_column(payloads)
    column.validate(full=True)
    assert column.equals(pa.array([bytes(one) for one in payloads], pa.binary()))


def test_more_payloads_than_an_array_can_have_are_several_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "MOST_BYTES", 1999)
    asked = []
    array = pa.array

    def note(values: object, kind: pa.DataType) -> object:
        asked.append(kind)
        return array(values, kind)

    monkeypatch.setattr(envelope.pa, "array", note)
    assert payload_column([b"x" * 1000] * 2).to_pylist() == [b"x" * 1000] * 2
    assert asked == [pa.binary()]


def test_a_fact_that_a_reader_does_not_know_is_null_in_rows_and_lines() -> None:
    records: Records[None] = Records(
        "S", sequences=[1], times_ns=[1], subjects=[b"a"], header_blocks=[b""], payloads=[b"x"]
    )
    assert to_table(records)["deliveries"].to_pylist() == [None]
    assert json.loads(lines(records))["deliveries"] is None


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    table = page.partition(heading)[2].partition("|---|")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]


def test_the_archives_readme_describes_each_column() -> None:
    page = text().decode()
    described = [name for row in rows_of(page, "## Formats\n") for name in re.findall("`(.*?)`", row[0])]
    assert described == [one.name for one in COLUMNS if one.about]
    assert all(f"`{one.name}`" in page for one in COLUMNS)
    in_csv = page.partition("- **`csv`**: the columns ")[2].partition(" and behind them")[0]
    assert re.findall("`(.*?)`", in_csv) == list(ENVELOPE)


def test_the_page_on_formats_describes_each_column_with_its_type() -> None:
    described = [
        (row[0].strip("`"), row[1]) for row in rows_of((ROOT / "docs/formats.md").read_text(), "## The envelope")
    ]
    names = {TYPES[one]: one for one in TYPES} | {TYPES["headers"]: "map of string to list of string"}
    assert described == [(field.name, names[field.type]) for field in SCHEMA]


def test_a_column_is_read_from_the_first_values_of_its_header() -> None:
    column = Column(name="length", type="int32", source="header_blocks", header="Colour", read=len)
    assert column.of(["red", None]) == [3, None]
    assert parse_origin("ORDERS 7 > >") == ("ORDERS", 7)
    assert parse_origin("ORDERS x") == (None, None)
