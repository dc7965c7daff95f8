"""An operator with one account, as `nsc` creates them: a server that trusts it, and credentials files that expire."""

import base64
import json
import os
import time
from math import ceil

import nkeys
from secret import write_secret

UNLIMITED = {"wildcards": True, **dict.fromkeys(["subs", "data", "payload", "imports", "exports", "conn", "leaf"], -1)}
JETSTREAM = dict.fromkeys(["mem_storage", "disk_storage", "streams", "consumer"], -1)


def _pair(kind):
    seed = nkeys.encode_seed(os.urandom(32), kind)
    return seed, nkeys.from_seed(seed)


def _encode(value):
    return base64.urlsafe_b64encode(value).rstrip(b"=")


def _sign(issuer, subject, nats, **claims):
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    claims |= {"jti": os.urandom(8).hex(), "iat": int(time.time()), "iss": issuer.public_key.decode()}
    claims |= {"sub": subject.public_key.decode(), "name": "test", "nats": {**nats, "version": 2}}
    signed = b".".join(_encode(json.dumps(part).encode()) for part in (head, claims))
    return (signed + b"." + _encode(issuer.sign(signed))).decode()


class Operator:
    """Keys of an operator, its system account and one account with JetStream, by default without limits."""

    def __init__(self, jetstream=JETSTREAM):
        _, operator = _pair(nkeys.PREFIX_BYTE_OPERATOR)
        _, system = _pair(nkeys.PREFIX_BYTE_ACCOUNT)
        _, self._account = _pair(nkeys.PREFIX_BYTE_ACCOUNT)
        limits = {system: UNLIMITED, self._account: UNLIMITED | jetstream}
        tokens = {
            account.public_key.decode(): _sign(operator, account, {"type": "account", "limits": given})
            for account, given in limits.items()
        }
        preloaded = ", ".join(f"{name}: {token}" for name, token in tokens.items())
        trusted = _sign(operator, operator, {"type": "operator", "system_account": system.public_key.decode()})
        self.config = f"operator: {trusted}\nresolver: MEMORY\nresolver_preload: {{ {preloaded} }}"

    def credentials(self, path, *, seconds):
        """Write a new user's credentials file, which expires after this many seconds, not earlier."""
        seed, user = _pair(nkeys.PREFIX_BYTE_USER)
        unlimited = {"pub": {}, "sub": {}, **dict.fromkeys(["subs", "data", "payload"], -1)}
        token = _sign(self._account, user, {"type": "user", **unlimited}, exp=ceil(time.time() + seconds))
        return write_secret(
            path,
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n",
        )
