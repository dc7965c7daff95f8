"""TLS: contexts that always verify, a certificate authority for development, and errors in one clear sentence.

There is deliberately no parameter here that turns verification off.
"""

import ipaddress
import os
import ssl
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from natty.config.secret_files import check_key_file, make_folder
from natty.errors import TLSError

DEV_DAYS = 30  # a development certificate is short-lived: days
DEV_HOSTS = ("localhost", "127.0.0.1", "::1")
CLOCK_SKEW = timedelta(minutes=5)  # a fresh certificate is valid on a machine whose clock is this far behind


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A certificate and its private key (PKCS8, unencrypted), both PEM."""

    cert_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        subject = x509.load_pem_x509_certificate(self.cert_pem).subject.rfc4514_string()
        return f"<Certificate {subject}>"


@dataclass(frozen=True, kw_only=True)
class TLSFiles:
    """The paths of the PEM files that `DevCA.write` wrote."""

    ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path

    @classmethod
    def within(cls, folder: Path) -> "TLSFiles":
        """Return the paths that `DevCA.write(folder)` uses, whether or not they exist."""
        names = ("ca.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem")
        ca, server_cert, server_key, client_cert, client_key = (folder / name for name in names)
        return cls(
            ca=ca, server_cert=server_cert, server_key=server_key, client_cert=client_cert, client_key=client_key
        )


class DevCA:
    """A certificate authority for development and tests. Its key stays in memory unless `write` gets `with_ca_key`.

    Keys are EC P-256. For production use your own authority.
    """

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, now: datetime) -> None:
        self._certificate = certificate
        self._key = key
        self._now = now

    def __repr__(self) -> str:
        until = self._certificate.not_valid_after_utc
        return f"<DevCA {self._certificate.subject.rfc4514_string()} until {until:%Y-%m-%d}>"

    @classmethod
    def create(
        cls, name: str = "natty development CA", *, days: float = DEV_DAYS, now: datetime | None = None
    ) -> "DevCA":
        """Create an authority, valid for `days` from `now` (default: the clock)."""
        now = now or datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, _name(name), key, (now - CLOCK_SKEW, now + timedelta(days=days)))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        return cls(builder.sign(key, hashes.SHA256()), key, now)

    @property
    def cert_pem(self) -> bytes:
        """The authority's own certificate, PEM, for clients and servers to trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        common_name: str,
        *,
        hosts: Iterable[str] = DEV_HOSTS,
        client: bool = True,
        server: bool = True,
        days: float = DEV_DAYS,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
    ) -> Certificate:
        """Sign a new certificate for `hosts` (names or addresses), for a `client`, a `server` or both.

        It expires with the authority at the latest, unless `not_after` says otherwise.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        ends = min(self._now + timedelta(days=days), self._certificate.not_valid_after_utc)
        validity = (not_before or self._now - CLOCK_SKEW, not_after or ends)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH] * server + [ExtendedKeyUsageOID.CLIENT_AUTH] * client
        builder = _builder(common_name, self._certificate.subject, key, validity)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer_key, critical=False)
        if names := [_general_name(host) for host in hosts]:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Certificate(cert_pem=certificate.public_bytes(serialization.Encoding.PEM), key_pem=_private_pem(key))

    def write(
        self,
        folder: str | Path,
        *,
        hosts: Iterable[str] = DEV_HOSTS,
        days: float = DEV_DAYS,
        force: bool = False,
        with_ca_key: bool = False,
    ) -> TLSFiles:
        """Write ca.pem and a server's and a client's certificate and key into `folder`; only you may read the keys.

        Raises `TLSError` if the folder has any of these files and `force` is not set, or if it can't be written.
        `with_ca_key` also writes ca-key.pem, to sign more certificates later.
        """
        folder = Path(folder)
        files = TLSFiles.within(folder)
        server = self.issue("natty-server", hosts=hosts, days=days)
        client = self.issue("natty-client", hosts=(), server=False, days=days)
        contents = {
            files.ca: self.cert_pem,
            files.server_cert: server.cert_pem,
            files.server_key: server.key_pem,
            files.client_cert: client.cert_pem,
            files.client_key: client.key_pem,
        }
        if with_ca_key:
            contents[folder / "ca-key.pem"] = _private_pem(self._key)
        _refuse_existing(folder, contents, force)
        try:
            make_folder(folder)
            for path, content in contents.items():
                _write(path, content)
        except OSError as error:
            raise TLSError(f"Certificates can't be written into {folder}: {error.strerror}.") from error
        return files


def expiries(path: str | Path) -> list[datetime]:
    """Return when each certificate of a PEM file expires, in the file's order. TLSError with the file's name."""
    return [one.not_valid_after_utc for one in _load_certificates(Path(path), "certificate")]


def client_context(
    *,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    now: datetime | None = None,
) -> ssl.SSLContext:
    """Create a client's context that verifies the server's chain and host name, TLS 1.2 or later.

    The host must be among the certificate's subject alternative names; its common name does not count.
    `ca` is a PEM file of the authorities to trust, None for the system's. `cert` and `key` are the client's, for
    servers that request them. Raises `TLSError` with the file if one can't be used at `now` (default: the clock).
    """
    now = now or datetime.now(UTC)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    if ca:
        context.load_verify_locations(cadata=_load_authorities(Path(ca), now))
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if cert and not key:
        raise TLSError(f"The client certificate {cert} was given without its key; give the key's file too.")
    if key and not cert:
        raise TLSError(f"The key {key} was given without its client certificate; give the certificate's file too.")
    if cert and key:
        check_key_file(key)
        _check_client_pair(Path(cert), Path(key), now)
        _load_client_pair(context, cert, key)
    return context


# OpenSSL's X509_V_ERR_…
_VERIFY_NOT_YET, _VERIFY_EXPIRED, _VERIFY_PURPOSE, _VERIFY_HOST, _VERIFY_ADDRESS = 9, 10, 26, 62, 64

_REFUSALS = {  # what a server's alert means, by the end of OpenSSL's reason code
    "CERTIFICATE_REQUIRED": "asks for a client certificate and none was given; give a certificate and its key",
    "ALERT_UNKNOWN_CA": "does not trust the authority that signed our client certificate; use one signed by its CA",
    "ALERT_BAD_CERTIFICATE": "did not accept our client certificate, or asks for one and none was given; "
    "check the certificate and its key",
    "ALERT_CERTIFICATE_EXPIRED": "says that our client certificate has expired; renew it",
    "ALERT_CERTIFICATE_REVOKED": "says that our client certificate was revoked; use another one",
    "ALERT_CERTIFICATE_UNKNOWN": "did not accept our client certificate; check which ones it accepts",
    "ALERT_UNSUPPORTED_CERTIFICATE": "says that our client certificate is not one for clients; issue it for client use",
    "ALERT_PROTOCOL_VERSION": "speaks no TLS version that we accept; it must offer TLS 1.2 or later",
    "UNSUPPORTED_PROTOCOL": "speaks no TLS version that we accept; it must offer TLS 1.2 or later",
    "ALERT_HANDSHAKE_FAILURE": "shares no cipher with us or asks for a client certificate; check its TLS settings",
    "WRONG_VERSION_NUMBER": "did not answer with TLS: it speaks plain text on this port; check the address, "
    "the server's TLS settings and tls_first",
    "RECORD_LAYER_FAILURE": "did not answer with TLS: it speaks plain text on this port; check the address, "
    "the server's TLS settings and tls_first",
}

_CLOSED = "closed the connection during the TLS handshake, perhaps refusing our client certificate; its log says why"


SYSTEM = "any CA in the system's trust store"
"""The CAs that a client trusts if none was given to it. The text is part of error messages."""


def explain(error: BaseException, trusted: str = SYSTEM) -> str:
    """Return why a TLS connection failed, and what to do, as a clause about "it", the server.

    Also examines the error's causes. `trusted` says which CAs the client trusts.
    """
    tls_error = _find_ssl_error(error)
    if tls_error is None and isinstance(error, ConnectionError):  # a reset arrives before the alert with the reason
        return f"it {_CLOSED}"
    if tls_error is None:
        return f"the TLS connection failed: {str(error) or type(error).__name__}"
    if isinstance(tls_error, ssl.SSLCertVerificationError):
        return f"it has a certificate {_explain_verification(tls_error, trusted)}"
    reason = tls_error.reason or ""
    for ending, meaning in _REFUSALS.items():
        if reason.endswith(ending):
            return f"it {meaning}"
    if isinstance(tls_error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return f"it {_CLOSED}"
    return f"the TLS handshake failed: {reason or tls_error}"


def _find_ssl_error(error: BaseException | None) -> ssl.SSLError | None:
    seen = 0
    while error is not None and seen < 20:  # a chain of causes may be circular
        if isinstance(error, ssl.SSLError):
            return error
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None


def _explain_verification(error: ssl.SSLCertVerificationError, trusted: str) -> str:
    code = error.verify_code
    if code == _VERIFY_EXPIRED:
        return "that has expired, or whose CA has expired; renew it"
    if code == _VERIFY_NOT_YET:
        return "that is not valid yet; check both clocks"
    if code in (_VERIFY_HOST, _VERIFY_ADDRESS):
        return (
            "for another host name; connect by a name in it, or issue one for this name"
            " (as a subject alternative name: a common name does not count)"
        )
    if code == _VERIFY_PURPOSE:
        return "that is not one for servers; issue it for server use"
    what_to_do = "name the server's CA: NATS_CA, --tlsca or tls_ca" if trusted == SYSTEM else "check that CA"
    return f"that is not signed by {trusted} ({error.verify_message}); {what_to_do}"


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise TLSError(
            f"The {what} {path} does not exist; check the path (`natty tls init` makes files for development)."
        ) from error
    except OSError as error:
        raise TLSError(f"The {what} {path} can't be read: {error.strerror}; check its permissions.") from error


def _load_certificates(path: Path, what: str) -> list[x509.Certificate]:
    content = _read(path, what)
    try:
        with warnings.catch_warnings():  # CA files of systems have certificates with invalid serial numbers
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise TLSError(
            f"The {what} {path} holds no PEM certificate; give a file that begins with BEGIN CERTIFICATE."
        ) from error


def _load_authorities(path: Path, now: datetime) -> str:
    certificates = _load_certificates(path, "CA file")
    latest = max(certificate.not_valid_after_utc for certificate in certificates)
    if latest < now:
        raise TLSError(f"The CA file {path} expired on {latest:%Y-%m-%d %H:%M} UTC; get the current CA.")
    return "".join(c.public_bytes(serialization.Encoding.PEM).decode("ascii") for c in certificates)


def _check_client_pair(cert: Path, key: Path, now: datetime) -> None:
    certificate = _load_certificates(cert, "client certificate")[0]
    private = _load_key(key)
    if certificate.public_key() != private.public_key():
        raise TLSError(f"The key {key} does not belong to the client certificate {cert}; give the pair made together.")
    if certificate.not_valid_after_utc < now:
        ended = certificate.not_valid_after_utc
        raise TLSError(f"The client certificate {cert} expired on {ended:%Y-%m-%d %H:%M} UTC; renew it.")
    if certificate.not_valid_before_utc > now:
        begins = certificate.not_valid_before_utc
        raise TLSError(
            f"The client certificate {cert} is valid only from {begins:%Y-%m-%d %H:%M} UTC; check this machine's clock."
        )


def _load_key(path: Path) -> PrivateKeyTypes:
    content = _read(path, "key")
    try:
        return serialization.load_pem_private_key(content, password=None)
    except TypeError as error:  # cryptography raises it if a password is needed
        raise TLSError(
            f"The key {path} is encrypted; give an unencrypted one, protected by its permissions."
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TLSError(
            f"The key {path} holds no PEM private key; give the file of the key itself, not of the certificate."
        ) from error


def _load_client_pair(context: ssl.SSLContext, cert: str | Path, key: str | Path) -> None:
    try:
        context.load_cert_chain(cert, key, password=lambda: "")  # never ask for a password on the terminal
    except (ssl.SSLError, OSError) as error:
        raise TLSError(f"OpenSSL does not accept the client certificate {cert} with the key {key}: {error}.") from error


def _builder(
    common_name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, validity: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(common_name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity[0])
        .not_valid_after(validity[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _refuse_existing(folder: Path, paths: Iterable[Path], force: bool) -> None:
    existing = sorted(path.name for path in paths if path.exists())
    if existing and not force:
        raise TLSError(
            f"{folder} holds {', '.join(existing)} already; use force (--force) to replace them, or another folder."
        )


def _write(path: Path, content: bytes) -> None:
    """Write a file so that others can't read a key at any time."""
    path.unlink(missing_ok=True)
    mode = 0o600 if path.stem.endswith("-key") else 0o644
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
