"""Options are written twice, as a dataclass and as the keywords that an editor shows: both say the same."""

import ast
import inspect
import textwrap
from dataclasses import MISSING, fields
from itertools import pairwise
from typing import get_type_hints

import pytest

from capture.reading.options import ReadOptions, ReadSettings
from natty.config.settings import Config, ConnectionSettings
from natty.consuming.options import ConsumeOptions, ConsumeSettings
from natty.elections import ElectionOptions, ElectionSettings, ProgramSettings
from natty.groups.joining import JoinOptions, JoinSettings
from natty.kv import WatchOptions, WatchSettings
from natty.publishing.options import PublisherOptions, PublisherSettings
from natty.pulling.requests import PullOptions, PullSettings

PAIRS = {
    ConnectionSettings: Config,
    ConsumeSettings: ConsumeOptions,
    ElectionSettings: ElectionOptions,
    JoinSettings: JoinOptions,
    PublisherSettings: PublisherOptions,
    PullSettings: PullOptions,
    ReadSettings: ReadOptions,
    WatchSettings: WatchOptions,
}
NOT_KEYWORDS = {ConnectionSettings: {"servers"}, ElectionSettings: {"name"}}  # parameters of their own
WIDER = {ConnectionSettings: dict.fromkeys(("connect_timeout", "timeout", "ping_interval"), float | str)}
MIB = 1024 * 1024


def documented(keywords) -> dict[str, str]:
    """Return what stands below each field of a TypedDict."""
    body = ast.parse(textwrap.dedent(inspect.getsource(keywords))).body[0].body
    return {
        field.target.id: text.value.value
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def shown(default: object) -> str:
    """Return a default as it is written for people."""
    return f"{default // MIB} MiB" if isinstance(default, int) and default >= MIB else str(default)


@pytest.mark.parametrize("keywords", PAIRS, ids=lambda keywords: keywords.__name__)
def test_the_keywords_of_a_call_are_the_fields_of_its_options_with_their_types(keywords):
    hints = get_type_hints(PAIRS[keywords])
    wanted = {one.name: hints[one.name] for one in fields(PAIRS[keywords])}
    for name in NOT_KEYWORDS.get(keywords, ()):
        del wanted[name]
    assert get_type_hints(keywords) == wanted | WIDER.get(keywords, {})
    assert not keywords.__required_keys__


@pytest.mark.parametrize("keywords", [*PAIRS, ProgramSettings], ids=lambda keywords: keywords.__name__)
def test_each_keyword_says_what_it_is_and_its_default(keywords):
    texts = documented(keywords)
    assert texts.keys() == get_type_hints(keywords).keys()
    assert all("Default " in text for text in texts.values())
    for field in fields(PAIRS[keywords]) if keywords in PAIRS else ():
        if field.name in texts and field.default is not MISSING:
            said = texts[field.name].partition("Default ")[2]
            assert said.replace('"', "").startswith(shown(field.default)), field.name
