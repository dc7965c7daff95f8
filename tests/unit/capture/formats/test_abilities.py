"""What a format can do is said in one place; no other file compares names of formats."""

import ast
from pathlib import Path

import pytest

from capture.archive.stored_formats import FORMATS, format_of, is_open
from capture.errors import ConfigError, FormatError
from capture.formats import check_writer, reader, writer
from capture.formats.choose import _plain

ROOT = Path(__file__).parents[4]
NAMED_BY = {  # where the name of a format, or a word that is spelled like one, may stand
    "capture/archive/stored_formats.py",  # the description
    "capture/config/settings.py",  # the default, and the default decoder: raw
    "capture/decoders/choose.py",  # a decoder: raw
    "capture/cli/cat.py",  # a way to print a message: raw
}


PATHS = {"capture/archive/manifest.py", "capture/reading/duck.py", "capture/spark/derive_task.py"}
"""They write the end of a file's name."""


def names_in(path: Path) -> list[int]:
    """Return the lines with a text that is a format's name, with or without a dot before it or endings behind it."""
    texts = [one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Constant)]
    return [one.lineno for one in texts if isinstance(one.value, str) and _names_a_format(one.value)]


def _names_a_format(text: str) -> bool:
    return text.removeprefix(".").partition(".")[0] in FORMATS


def test_only_formats_and_the_configuration_name_a_format() -> None:
    files = sorted((ROOT / "capture").rglob("*.py"))
    named = {str(path.relative_to(ROOT)) for path in files if names_in(path)}
    assert {one for one in named if not one.startswith("capture/formats/")} == NAMED_BY | PATHS


def test_no_file_compares_the_name_of_a_format() -> None:
    """`formats/` aside, which chooses by it."""
    for name in sorted(NAMED_BY | PATHS):
        tree = ast.parse((ROOT / name).read_text())
        tests = [one for one in ast.walk(tree) if isinstance(one, ast.Compare | ast.match_case)]
        texts = [one.value for test in tests for one in ast.walk(test) if isinstance(one, ast.Constant)]
        assert [one for one in texts if isinstance(one, str) and _names_a_format(one)] == [], name


@pytest.mark.parametrize("name", FORMATS)
def test_every_described_format_can_be_written_and_read_and_conforms(name: str) -> None:
    assert (writer(name).format, reader(name).format) == (name, name)
    check_writer(_plain(name))


def test_what_each_format_can_do() -> None:
    can = {
        name: {ability for ability in ("restorable", "mergeable", "columnar", "compresses") if getattr(one, ability)}
        for name, one in FORMATS.items()
    }
    assert can == {
        "parquet": {"restorable", "mergeable", "columnar", "compresses"},
        "ndjson": {"restorable", "mergeable"},
        "csv": set(),
        "raw": {"restorable", "mergeable"},
    }


def test_an_object_has_the_abilities_of_the_format_inside_of_it() -> None:
    assert format_of("ndjson.zst.enc") is FORMATS["ndjson"]
    assert [name for name in ("parquet", "parquet.enc", "ndjson", "parquetry") if is_open(name)] == ["parquet"]


def test_a_format_that_is_not_known_can_do_nothing_and_is_refused() -> None:
    unknown = format_of("avro.zst")
    assert not any((unknown.restorable, unknown.mergeable, unknown.columnar))
    with pytest.raises(FormatError, match="avro"):
        reader("avro.zst")
    with pytest.raises(ConfigError, match=", ".join(FORMATS)):
        writer("avro")
    with pytest.raises(ConfigError, match="flatten makes rows for csv; ndjson has none"):
        writer("ndjson", flatten="a:b")
