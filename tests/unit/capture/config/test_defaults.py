"""No default stands twice: a setting of the configuration that reaches an option takes its default from there."""

import ast
from dataclasses import MISSING, fields
from inspect import signature
from pathlib import Path

import msgspec
import pytest

from capture.archive.picture import GRACE
from capture.config import settings
from capture.ingest.block import Limits
from capture.ingest.commit import CommitOptions
from capture.ingest.durable import Durable
from capture.ingest.pipeline import InFlight
from capture.ingest.spill import Spill
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.engine import FileGroup
from capture.maintenance.leading import Leading
from capture.maintenance.schedule import Schedule
from capture.reading import duck
from capture.spark import protocol
from capture.spark.options import SparkOptions

REACH = [
    (settings.Sealing, Limits, {}),
    (settings.Buffers, Spill, {"max_disk_bytes": "max_bytes"}),
    (settings.Compacting, Schedule, {}),
    (settings.Compacting, Policy, {}),
    (settings.Compacting, FileGroup, {}),
    (settings.Spark, SparkOptions, {}),
    (settings.Sweeping, Leading, {}),
    (settings.CaptureConfig, Durable, {}),
    (settings.CaptureConfig, InFlight, {}),
    (settings.CaptureConfig, Policy, {}),
    (settings.CaptureConfig, CommitOptions, {"store_attempts": "attempts"}),
]
TREE = ast.parse(Path(settings.__file__).read_text())


def defaults(of: object) -> dict[str, object]:
    """Return the defaults of a struct's or a dataclass's fields, or of a function's parameters."""
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        return {one.name: one.default for one in msgspec.structs.fields(of) if one.default is not msgspec.NODEFAULT}
    if hasattr(of, "__dataclass_fields__"):
        return {one.name: one.default for one in fields(of) if one.default is not MISSING}  # type: ignore[arg-type]
    return {one.name: one.default for one in signature(of).parameters.values() if one.default is not one.empty}  # type: ignore[arg-type]


def shared(setting: type, option: object, names: dict[str, str]) -> dict[str, tuple[object, object]]:
    """Return the defaults of the settings that reach the option: the setting's, and the option's."""
    there = defaults(option)
    pairs = {name: (default, names.get(name, name)) for name, default in defaults(setting).items()}
    return {name: (default, there[other]) for name, (default, other) in pairs.items() if other in there}


def written(setting: type) -> dict[str, ast.expr]:
    """Return how the defaults are written in the file, by the setting's name."""
    (found,) = [one for one in TREE.body if isinstance(one, ast.ClassDef) and one.name == setting.__name__]
    lines = [one for one in found.body if isinstance(one, ast.AnnAssign) and one.value is not None]
    return {one.target.id: one.value for one in lines if isinstance(one.target, ast.Name) and one.value}


@pytest.mark.parametrize(("setting", "option", "names"), REACH, ids=lambda one: getattr(one, "__name__", ""))
def test_a_setting_takes_its_default_from_the_option_that_it_reaches(
    setting: type, option: object, names: dict[str, str]
) -> None:
    both = shared(setting, option, names)
    assert both
    assert {name: mine for name, (mine, _) in both.items()} == {name: its for name, (_, its) in both.items()}
    numbers = [name for name, (default, _) in both.items() if default not in ("", None, False, True, 0)]
    literal = [name for name in numbers if isinstance(written(setting)[name], ast.Constant | ast.BinOp)]
    assert literal == [], "written as a number or a text of its own"


def test_the_grace_and_the_limit_of_answers_are_one_constant_each() -> None:
    assert {defaults(one)["grace"] for one in (Leading, settings.Sweeping)} == {GRACE}
    assert CommitOptions().give_up == GRACE / 2
    assert defaults(duck.query)["limit"] == defaults(protocol.Query)["limit"]
