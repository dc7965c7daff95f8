"""The server's information about our connection, our user and our account."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from natty.errors import UNREADABLE, DomainUnreachableError, JetStreamNotEnabledError, NattyError
from natty.jetstream import JetStream
from natty.wire.connection import Connection

USER_INFO = "$SYS.REQ.USER.INFO"
PATIENCE = 1.0  # seconds to wait for servers before 2.10, which do not answer this request
LIMITS = {"memory": "max_memory", "storage": "max_storage", "streams": "max_streams", "consumers": "max_consumers"}
"""A JetStream resource of an account → the name of its limit."""


@dataclass(frozen=True)
class Account:
    """The server's answers. `user` is empty if the server does not report it; `jetstream` if `why_not` is set."""

    connection: dict[str, Any] = field(default_factory=dict)
    user: dict[str, Any] = field(default_factory=dict)
    jetstream: dict[str, Any] = field(default_factory=dict)
    why_not: str = ""


async def account_info(jetstream: JetStream) -> Account:
    """Return how the server sees us, and our account's use of JetStream; missing JetStream is not an error.

    AuthorizationError without the permission to read the account, RequestTimeoutError.
    """
    connection = jetstream.connection
    facts, user = await _facts(connection), await _user(connection)
    try:
        return Account(facts, user, await jetstream.request("INFO"))
    except (JetStreamNotEnabledError, DomainUnreachableError) as error:
        return Account(facts, user, why_not=str(error))


def usage(jetstream: Mapping[str, Any]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return tier → resource → (use, limit or -1); an account without tiers has one tier, named ""."""
    return {
        tier: {name: (one.get(name, 0), one.get("limits", {}).get(limit, -1)) for name, limit in LIMITS.items()}
        for tier, one in (jetstream.get("tiers") or {"": jetstream}).items()
    }


async def _facts(connection: Connection) -> dict[str, Any]:
    began = time.perf_counter()
    await connection.flush()
    round_trip = time.perf_counter() - began
    info, certificate = connection.server_info, connection.server_certificate
    return {
        "server": info.get("server_name", ""),
        "server_id": info.get("server_id", ""),
        "version": info.get("version", ""),
        "cluster": info.get("cluster", ""),
        "address": f"{info.get('host', '')}:{info.get('port', '')}",
        "client_id": info.get("client_id", 0),
        "client_ip": info.get("client_ip", ""),
        "round_trip_seconds": round_trip,
        "max_payload_bytes": info.get("max_payload", 0),
        "tls": bool(certificate) or connection.config.tls_required,
        "tls_issuer": _common_name(certificate.get("issuer", ())),
        "tls_subject": _common_name(certificate.get("subject", ())),
    }


async def _user(connection: Connection) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode((await connection.request(USER_INFO, timeout=PATIENCE))[3], type=dict[str, Any])
    except (NattyError, *UNREADABLE):
        return {}
    return dict(answer.get("data") or {})


def _common_name(names: Any) -> str:
    return next((value for part in names for key, value in part if key == "commonName"), "")
