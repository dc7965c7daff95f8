"""Options are written twice, as a dataclass and as the keywords that an editor shows: both say the same."""

from dataclasses import fields
from typing import get_type_hints

import pytest

from natty.consuming.options import ConsumeOptions, ConsumeSettings
from natty.groups.joining import JoinOptions, JoinSettings
from natty.pulling.requests import PullOptions, PullSettings


@pytest.mark.parametrize(
    ("options", "keywords"),
    [(ConsumeOptions, ConsumeSettings), (JoinOptions, JoinSettings), (PullOptions, PullSettings)],
)
def test_the_keywords_of_a_call_are_the_fields_of_its_options_with_their_types(options, keywords):
    hints = get_type_hints(options)
    assert get_type_hints(keywords) == {field.name: hints[field.name] for field in fields(options)}
    assert not keywords.__required_keys__
