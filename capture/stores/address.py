"""The address of an object store as one URL. It holds everything but the credentials, so that it can be logged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote, urlencode

import msgspec

from capture.errors import ConfigError, StoreError, mistake
from capture.stores.contract import check_path
from capture.stores.own_store import is_own, join_settings, read_query

SCHEMES = {"s3": "bucket", "az": "container", "gs": "bucket"}
"""The kinds of object stores, and what each calls the container of objects."""
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
_BUCKET = re.compile(r"[\w.$-]+", re.ASCII)
_ENDPOINT = re.compile(r"https?://[^/?#\s]+(/[^?#\s]*)?")
TIMEOUT = 30.0
"""Seconds that a store may take to answer; the time to transfer the bytes is added."""


class Address(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object store: `[store]` in capture.toml, or one URL with the other settings as its query.

    `url` is `s3://bucket/prefix`, `az://container/prefix` or `gs://bucket/prefix`. Empty settings are taken from the
    usual environment (`AWS_…`, `AZURE_…`, `GOOGLE_…`), as are the credentials. `ca` is a PEM file of authorities to
    trust in addition to the system's. `plain_http` allows an endpoint without TLS. With `encryption` and `kms_key` S3
    encrypts the objects. `timeout` is in seconds.
    """

    url: str
    endpoint: str = ""
    region: str = ""
    ca: str = ""
    plain_http: bool = False
    encryption: Literal["", "AES256", "aws:kms", "aws:kms:dsse"] = ""
    kms_key: str = ""
    timeout: Annotated[float, msgspec.Meta(gt=0, le=3600)] = TIMEOUT

    @classmethod
    def parse(cls, url: str) -> Address:
        """Return the address of this URL. ConfigError names the fault and shows no secret."""
        return cls.of({"url": url})

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Address:
        """Return the address of these settings, some of which may be in the query of `url`. ConfigError."""
        plain, _, query = str(settings["url"]).partition("?")
        try:
            said = read_query(query)
        except ConfigError as error:
            raise ConfigError(f"{_redact(plain)}: {error}") from None
        try:
            address = msgspec.convert({**said, **settings, "url": plain}, cls, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the store {_redact(plain)}: {mistake(error)}") from None
        address._check()
        return msgspec.structs.replace(address, ca=str(Path(address.ca).absolute()) if address.ca else "")

    @property
    def scheme(self) -> str:
        """Return "s3", "az" or "gs"."""
        return self.url.partition("://")[0]

    @property
    def bucket(self) -> str:
        """The bucket, or Azure's container."""
        return self._place[0]

    @property
    def prefix(self) -> str:
        """The folder in the bucket to which the store's paths are relative; "" for the bucket itself."""
        return unquote(self._place[2].strip("/"))

    @property
    def text(self) -> str:
        """The one URL that `parse` reads back."""
        default = Address(url=self.url)
        names = [name for name in self.__struct_fields__ if getattr(self, name) != getattr(default, name)]
        said = {name: _plain(getattr(self, name)) for name in names}
        return self.url + (f"?{urlencode(said, safe=':/', quote_via=quote)}" if said else "")

    @property
    def _place(self) -> tuple[str, str, str]:
        return self.url.partition("://")[2].partition("/")

    def __repr__(self) -> str:
        return f"Address({self.text!r})"

    def _check(self) -> None:
        shown, scheme = _redact(self.url), self.scheme
        if scheme not in SCHEMES:
            raise ConfigError(
                f"{shown} is not an object store; supported are {', '.join(f'{one}://' for one in SCHEMES)}"
            )
        if "@" in self.bucket or "@" in self.endpoint:
            raise ConfigError(f"{shown} contains credentials, which logs would show: set {CREDENTIALS[scheme]}")
        if not _BUCKET.fullmatch(self.bucket) or "#" in self.url:
            what = SCHEMES[scheme]
            raise ConfigError(
                f"{shown} does not name a {what}: write {scheme}://{what}/prefix, and a server as endpoint"
            )
        if self.prefix:
            try:
                check_path(self.prefix)
            except StoreError as error:
                raise ConfigError(f"{shown}: {error}") from error
        if self.endpoint and not _ENDPOINT.fullmatch(self.endpoint):
            raise ConfigError(f"{shown}: the endpoint {self.endpoint!r} is not https://host:port")
        if self.endpoint.startswith("http:") and not self.plain_http:
            raise ConfigError(
                f"{shown}: the endpoint {self.endpoint} is not encrypted: use https, or set plain_http = true"
            )
        if scheme != "s3" and (self.region or self.encryption or self.kms_key):
            raise ConfigError(f"{shown}: region, encryption and kms_key apply to s3:// only")
        if self.kms_key and not self.encryption.startswith("aws:kms"):
            raise ConfigError(f'{shown}: kms_key applies to encryption = "aws:kms" or "aws:kms:dsse" only')


def store_url(settings: dict[str, Any]) -> str:
    """Return the URL that `open_store` takes for the settings of `[store]` in capture.toml. ConfigError."""
    url = str(settings.get("url", ""))
    if not url:
        raise ConfigError('[store] has no url: write url = "s3://bucket/prefix", or a folder')
    if url.partition("://")[0] in SCHEMES:
        return Address.of(settings).text
    if is_own(url):
        return join_settings(url, {name: value for name, value in settings.items() if name != "url"})
    if settings.keys() == {"url", "private"}:
        return _folder_url(url, settings["private"])
    if len(settings) > 1:
        others = ", ".join(sorted(settings.keys() - {"url"}))
        kinds = "s3://, az://, gs:// and module:function"
        raise ConfigError(f"[store]: {others}: for {kinds} only, not for {_redact(url)}")
    return url


def _folder_url(url: str, private: object) -> str:
    """Return the URL of a folder, with the setting `private`. ConfigError."""
    if not isinstance(private, bool) and str(private).lower() not in ("true", "false"):
        raise ConfigError(f"[store]: `private` is true or false, not {private!r}")
    if "://" in url and not url.startswith("file://"):
        raise ConfigError(f"[store]: private: for a folder only, not for {_redact(url)}")
    plain = url if url.startswith("file://") else Path(url).absolute().as_uri()
    return f"{plain.partition('?')[0]}?private=true" if str(private).lower() == "true" else plain


def _redact(url: str) -> str:
    """Return the URL without its user, password and query, which may hold secrets."""
    plain = url.partition("?")[0]
    scheme, separator, rest = plain.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
