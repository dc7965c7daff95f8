"""Absolute locations, which Iceberg's metadata consist of: the archive's URL as other engines know it."""

from __future__ import annotations

from urllib.parse import unquote

from capture.stores.contract import Store


def archive_location(store: Store, said: str = "") -> str:
    """Return the URL that paths of the archive are below, without a slash at its end: what is `said`, or the store's.

    It is plain text: Iceberg's readers take a percent sign in it, or in a path below it, for nothing but itself.
    """
    return (said or unquote(store.url.partition("?")[0])).rstrip("/")
