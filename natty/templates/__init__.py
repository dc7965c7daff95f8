"""Streams that are created on demand: a pattern of subjects, and a stream for each new token. docs/templates.md"""

from natty.templates.declared import Standing, TemplateNotFoundError, Templates
from natty.templates.template import Decision, Template, decide

__all__ = ["Decision", "Standing", "Template", "TemplateNotFoundError", "Templates", "decide"]
