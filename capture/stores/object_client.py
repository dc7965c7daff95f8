"""Makes obstore's client for an address. Credentials and settings that the address omits come from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from capture.errors import ConfigError
from capture.stores.address import CREDENTIALS, Address

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config

CONNECT_TIMEOUT = 10.0  # seconds
IDLE = 15.0
"""Seconds after which an idle connection is not used again: routers drop idle connections without notice."""
RETRIES = 3
"""Retries of one request, each after a fraction of a second: a short fault does not cost the commit an attempt."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds, jittered
NEVER = timedelta(days=1)
"""Turns the driver's time limit off, which ignores an object's size: `ObjectStore` sets one for each operation."""

ENVIRONMENT = {"s3": "AWS", "az": "AZURE", "gs": "GOOGLE"}

Client: TypeAlias = S3Store | AzureStore | GCSStore


def client(address: Address, environment: Mapping[str, str], *, deletes_many: bool = False) -> Client:
    """Return a client without contacting the server. ConfigError: a setting that can't be used.

    With `deletes_many` it deletes several objects by one request; otherwise, on S3, by a request for each.
    """
    options = _options(address, environment)
    retry: RetryConfig = {
        "max_retries": RETRIES,
        "backoff": {
            "init_backoff": timedelta(seconds=FIRST_PAUSE),
            "max_backoff": timedelta(seconds=LONGEST_PAUSE),
            "base": 2,
        },
        "retry_timeout": timedelta(seconds=address.timeout),
    }
    bucket, prefix = address.bucket, address.prefix or None
    try:
        match address.scheme:
            case "s3":
                s3 = _s3(address, deletes_many=deletes_many)
                return S3Store(bucket, prefix=prefix, config=s3, client_options=options, retry_config=retry)
            case "az":
                azure: AzureConfig = {"endpoint": address.endpoint} if address.endpoint else {}
                return AzureStore(bucket, prefix=prefix, config=azure, client_options=options, retry_config=retry)
            case _:
                google: GCSConfig = {"base_url": address.endpoint} if address.endpoint else {}
                return GCSStore(bucket, prefix=prefix, config=google, client_options=options, retry_config=retry)
    except (BaseError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{address.url} can't be opened: {reason}; check {CREDENTIALS[address.scheme]}, and the store's settings"
        ) from None


def _s3(address: Address, *, deletes_many: bool) -> S3Config:
    # otherwise the driver deletes one object by the request for several, which some S3-compatible servers do not have
    config: S3Config = {"disable_bulk_delete": not deletes_many}
    if address.endpoint:
        config["aws_endpoint_url_s3"] = address.endpoint  # takes precedence over every variable
    if address.region:
        config["region"] = address.region
    if address.encryption:
        config["server_side_encryption"] = address.encryption
    if address.kms_key:
        config["sse_kms_key_id"] = address.kms_key
    return config


def _options(address: Address, environment: Mapping[str, str]) -> ClientConfig:
    allowed = environment.get(f"{ENVIRONMENT[address.scheme]}_ALLOW_HTTP", "").lower() in ("1", "true", "yes")
    options: ClientConfig = {
        "allow_http": address.plain_http or allowed,
        "connect_timeout": timedelta(seconds=min(CONNECT_TIMEOUT, address.timeout)),
        "pool_idle_timeout": timedelta(seconds=IDLE),
        "timeout": NEVER,
    }
    if address.ca:
        try:
            options["root_certificate"] = Path(address.ca).read_bytes()
        except OSError as error:
            raise ConfigError(f"the store's CA file {address.ca} can't be read: {error.strerror}") from error
    return options
