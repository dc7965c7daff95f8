"""The public group classes: administration, and `join`."""

from __future__ import annotations

from typing import Unpack

from natty.config.options import make_options
from natty.consuming.handler import Handler
from natty.groups.autojoin import AutoMembership
from natty.groups.elastic import ElasticAdmin
from natty.groups.joining import JoinOptions, JoinSettings
from natty.groups.member import Membership
from natty.groups.roster import TTL
from natty.groups.static import StaticAdmin


class ElasticGroup(ElasticAdmin):
    """An elastic group of a stream: `async with group.join("m1", handler)`, and its administration."""

    def join(
        self,
        member: str | None = None,
        handler: Handler | None = None,
        *,
        ttl: float = TTL,
        **options: Unpack[JoinSettings],
    ) -> Membership:
        """Return an instance of a member, to be used with `async with`; the member need not be listed yet.

        Without a name, membership is automatic: the instance gets a share of the partitions, and loses it when it
        leaves or gives no sign of life for `ttl` seconds (5). Options: `JoinSettings`. Entering raises as
        `Membership.__aenter__` does. TypeError without a handler.
        """
        if handler is None:
            raise TypeError("join() was given no handler: pass one, `join(handler=…)` for a member without a name")
        if member is None:
            return AutoMembership(self._jetstream, self, handler, ttl, make_options(JoinOptions, "join", options))
        return Membership(self._jetstream, self, member, handler, make_options(JoinOptions, "join", options))


class StaticGroup(StaticAdmin):
    """A static group of a stream: `async with group.join("m1", handler)`, and its administration."""

    def join(self, member: str, handler: Handler, **options: Unpack[JoinSettings]) -> Membership:
        """Return an instance of a listed member, to be used with `async with`. Options: `JoinSettings`."""
        return Membership(self._jetstream, self, member, handler, make_options(JoinOptions, "join", options))
