import contextlib
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from secret import write_secret
from typer.testing import CliRunner

from natty.cli.tls import app
from natty.config.tls import DevCA, TLSFiles, client_context, explain
from natty.errors import TLSError

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def ca():
    return DevCA.create()


@pytest.fixture(scope="module")
def foreign_ca():
    return DevCA.create("somebody else's CA")


@pytest.fixture
def files(ca, tmp_path):
    return ca.write(tmp_path / "tls")


def save(folder, name, certificate):
    """Write a certificate and its key and return the keywords of client_context."""
    (folder / f"{name}.pem").write_bytes(certificate.cert_pem)
    write_secret(folder / f"{name}-key.pem", certificate.key_pem)
    return {"cert": folder / f"{name}.pem", "key": folder / f"{name}-key.pem"}


def server_context(files, *, mutual=False, version=ssl.TLSVersion.TLSv1_3):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = version
    context.maximum_version = version
    context.load_cert_chain(files.server_cert, files.server_key)
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
    return context


def handshake(client, server, host="localhost"):
    """Shake hands in memory and return the client's side; raises what the client would meet."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        _step(ours.do_handshake)
        try:
            _step(theirs.do_handshake)
        except ssl.SSLError:
            _step(lambda: ours.read(1))  # the server's alert
    _step(lambda: ours.read(1))
    return ours


def _step(act):
    with contextlib.suppress(ssl.SSLWantReadError):
        act()


def test_written_certificates_connect_both_ways(files):
    client = client_context(ca=files.ca, cert=files.client_cert, key=files.client_key)
    connection = handshake(client, server_context(files, mutual=True))
    assert connection.version() == "TLSv1.3"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_the_default_hosts_are_those_of_the_loopback(files, host):
    handshake(client_context(ca=files.ca), server_context(files), host)


def test_verification_is_on_and_old_versions_are_off(files):
    context = client_context(ca=files.ca)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_without_a_ca_the_system_decides(files):
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client_context(), server_context(files))


def test_keys_are_readable_by_their_owner_only(files):
    for key in (files.server_key, files.client_key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_the_authoritys_key_is_written_only_on_request(ca, files, tmp_path):
    assert not (files.ca.parent / "ca-key.pem").exists()
    ca.write(tmp_path / "more", with_ca_key=True)
    key = serialization.load_pem_private_key((tmp_path / "more" / "ca-key.pem").read_bytes(), None)
    assert key.public_key() == x509.load_pem_x509_certificate(ca.cert_pem).public_key()


def test_existing_certificates_are_replaced_only_by_force(ca, files):
    before = files.server_cert.read_bytes()
    with pytest.raises(TLSError, match=r"holds ca.pem, client-key.pem, .* already; use force"):
        ca.write(files.ca.parent)
    assert files.server_cert.read_bytes() == before
    assert ca.write(files.ca.parent, force=True) == files
    assert files.server_cert.read_bytes() != before


def test_git_adds_nothing_of_a_folder_made_for_keys_and_an_existing_folder_is_left_alone(ca, tmp_path):
    ca.write(tmp_path / "made")
    assert (tmp_path / "made" / ".gitignore").read_text() == "*\n"
    (tmp_path / "mine").mkdir()
    ca.write(tmp_path / "mine")
    assert not (tmp_path / "mine" / ".gitignore").exists()
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    status = ["git", "-C", tmp_path, "status", "--porcelain"]
    assert subprocess.run(status, capture_output=True, text=True, check=True).stdout == "?? mine/\n"


def test_a_folder_that_cant_be_made_is_named(ca, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TLSError, match=r"can't be written into .*file"):
        ca.write(tmp_path / "file" / "tls")


def test_a_certificate_ends_with_its_authority_at_the_latest():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    issued = DevCA.create(days=5, now=now).issue("node", days=90)
    certificate = x509.load_pem_x509_certificate(issued.cert_pem)
    assert certificate.not_valid_after_utc == now + 5 * DAY
    assert certificate.not_valid_before_utc < now


def test_a_repr_shows_no_key(ca):
    assert repr(ca).startswith("<DevCA CN=natty development CA until ")
    assert repr(ca.issue("node-1")) == "<Certificate CN=node-1>"


def test_a_file_that_does_not_exist_is_named(files, tmp_path):
    missing = tmp_path / "missing.pem"
    with pytest.raises(TLSError, match=r"CA file .*missing.pem does not exist"):
        client_context(ca=missing)
    with pytest.raises(TLSError, match=r"client certificate .*missing.pem does not exist"):
        client_context(ca=files.ca, cert=missing, key=files.client_key)
    with pytest.raises(TLSError, match=r"key .*missing.pem does not exist"):
        client_context(ca=files.ca, cert=files.client_cert, key=missing)


def test_an_unreadable_ca_is_never_ignored(tmp_path):
    with pytest.raises(TLSError, match=r"can't be read: Is a directory"):
        client_context(ca=tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a certificate", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"],
)
def test_a_ca_that_is_no_pem_is_named(tmp_path, content):
    path = tmp_path / "odd.pem"
    path.write_bytes(content)
    with pytest.raises(TLSError, match=r"CA file .*odd.pem holds no PEM certificate"):
        client_context(ca=path)


def test_an_expired_ca_is_named(ca, tmp_path):
    old = DevCA.create(now=datetime.now(UTC) - 90 * DAY, days=30)
    path = tmp_path / "old.pem"
    path.write_bytes(old.cert_pem)
    with pytest.raises(TLSError, match=r"old.pem expired on \d{4}-\d\d-\d\d"):
        client_context(ca=path)
    path.write_bytes(old.cert_pem + ca.cert_pem)
    client_context(ca=path)  # a bundle may hold old ones


def test_a_certificate_and_its_key_belong_together(ca, files, tmp_path):
    other = save(tmp_path, "other", ca.issue("other"))
    with pytest.raises(TLSError, match=r"other-key.pem does not belong to the client certificate .*client.pem"):
        client_context(ca=files.ca, cert=files.client_cert, key=other["key"])
    with pytest.raises(TLSError, match="without its key"):
        client_context(ca=files.ca, cert=files.client_cert)
    with pytest.raises(TLSError, match="without its client certificate"):
        client_context(ca=files.ca, key=files.client_key)


def test_a_client_certificate_is_good_only_in_its_time(ca, files, tmp_path):
    now = datetime.now(UTC)
    old = save(tmp_path, "old", ca.issue("old", not_before=now - 9 * DAY, not_after=now - DAY))
    early = save(tmp_path, "early", ca.issue("early", not_before=now + DAY, not_after=now + 9 * DAY))
    with pytest.raises(TLSError, match=r"old.pem expired on .* renew it"):
        client_context(ca=files.ca, **old)
    with pytest.raises(TLSError, match=r"early.pem is valid only from .* clock"):
        client_context(ca=files.ca, **early)
    client_context(ca=files.ca, **old, now=now - 2 * DAY)


def test_an_encrypted_or_odd_key_is_named(files, tmp_path):
    key = serialization.load_pem_private_key(files.client_key.read_bytes(), None)
    path = write_secret(
        tmp_path / "encrypted.pem",
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        ),
    )
    with pytest.raises(TLSError, match=r"encrypted.pem is encrypted"):
        client_context(ca=files.ca, cert=files.client_cert, key=path)
    path.write_bytes(b"odd")
    with pytest.raises(TLSError, match=r"encrypted.pem holds no PEM private key"):
        client_context(ca=files.ca, cert=files.client_cert, key=path)


def explained(client, server, host="localhost"):
    with pytest.raises(ssl.SSLError) as caught:
        handshake(client, server, host)
    return explain(caught.value)


def test_explains_a_server_of_a_foreign_authority(files, foreign_ca, tmp_path):
    (tmp_path / "foreign.pem").write_bytes(foreign_ca.cert_pem)
    said = explained(client_context(ca=tmp_path / "foreign.pem"), server_context(files))
    assert said.startswith("it has a certificate that is not signed by any CA in the system's trust store (")
    assert said.endswith("; name the server's CA: NATS_CA, --tlsca or tls_ca")


def test_explains_another_authority_of_the_same_name(files, tmp_path):
    (tmp_path / "same.pem").write_bytes(DevCA.create().cert_pem)
    said = explained(client_context(ca=tmp_path / "same.pem"), server_context(files))
    assert "that is not signed by any CA" in said


def server_with(files, pair):
    return server_context(
        TLSFiles(
            ca=files.ca,
            server_cert=pair["cert"],
            server_key=pair["key"],
            client_cert=files.client_cert,
            client_key=files.client_key,
        )
    )


def test_explains_an_expired_server_certificate(ca, files, tmp_path):
    now = datetime.now(UTC)
    old = save(tmp_path, "old", ca.issue("old", not_before=now - 9 * DAY, not_after=now - DAY))
    assert "has expired" in explained(client_context(ca=files.ca), server_with(files, old))
    early = save(tmp_path, "early", ca.issue("early", not_before=now + DAY, not_after=now + 9 * DAY))
    assert "not valid yet" in explained(client_context(ca=files.ca), server_with(files, early))


def test_explains_a_client_certificate_used_by_a_server(ca, files, tmp_path):
    pair = save(tmp_path, "client-only", ca.issue("client-only", server=False))
    assert "not one for servers" in explained(client_context(ca=files.ca), server_with(files, pair))


@pytest.mark.parametrize("host", ["other.example", "10.0.0.1"])
def test_explains_a_host_name_that_does_not_fit(files, host):
    assert "for another host name" in explained(client_context(ca=files.ca), server_context(files), host)


def test_a_host_that_is_the_common_name_alone_is_refused(ca, files, tmp_path):
    pair = save(tmp_path, "cn-only", ca.issue("localhost", hosts=()))
    text = explained(client_context(ca=files.ca), server_with(files, pair))
    assert "as a subject alternative name: a common name does not count" in text


def test_explains_a_server_that_asks_for_a_client_certificate(files):
    assert "asks for a client certificate and none was given" in explained(
        client_context(ca=files.ca), server_context(files, mutual=True)
    )


def test_explains_a_server_that_refuses_our_certificate(files, foreign_ca, tmp_path):
    pair = save(tmp_path, "foreign", foreign_ca.issue("foreign"))
    said = explained(client_context(ca=files.ca, **pair), server_context(files, mutual=True))
    assert "does not trust the authority that signed our client certificate" in said


def test_explains_a_server_that_finds_our_certificate_expired(ca, files, tmp_path):
    now = datetime.now(UTC)
    pair = save(tmp_path, "old", ca.issue("old", not_before=now - 9 * DAY, not_after=now - DAY))
    client = client_context(ca=files.ca, **pair, now=now - 2 * DAY)
    assert "our client certificate has expired" in explained(client, server_context(files, mutual=True))


def test_explains_a_plain_text_server(files):
    ours, incoming = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(b'INFO {"server_id":"x"}\r\n')
    connection = client_context(ca=files.ca).wrap_bio(incoming, ours, server_hostname="localhost")
    with pytest.raises(ssl.SSLError) as caught:
        connection.do_handshake()
    assert "it speaks plain text on this port" in explain(caught.value)


def test_explains_a_connection_closed_during_the_handshake(files):
    ours, incoming = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write_eof()
    connection = client_context(ca=files.ca).wrap_bio(incoming, ours, server_hostname="localhost")
    with pytest.raises(ssl.SSLError) as caught:
        connection.do_handshake()
    assert "closed the connection during the TLS handshake" in explain(caught.value)


def test_a_reset_may_be_a_refusal_whose_reason_got_lost():
    said = explain(ConnectionResetError(104, "Connection reset by peer"))
    assert said.startswith("it closed the connection during the TLS handshake, perhaps refusing")


def test_finds_the_tls_error_among_the_causes(files):
    error = OSError("could not connect")
    error.__cause__ = ssl.SSLCertVerificationError("odd")
    error.__cause__.verify_code, error.__cause__.verify_message = 62, "Hostname mismatch"
    assert "another host name" in explain(error)


def test_an_error_that_is_none_of_tls_is_told_as_it_is():
    error = OSError("no route to host")
    error.__context__ = ValueError("odd")
    assert explain(error) == "the TLS connection failed: no route to host"
    assert "TimeoutError" in explain(TimeoutError())


def test_init_writes_certificates_for_the_hosts_named_and_says_what_is_next(tmp_path):
    folder = tmp_path / "tls"
    folder.mkdir()
    (folder / "nats-server.conf").touch()
    result = CliRunner().invoke(app, ["init", str(folder), "--host", "nats-1", "--host", "10.1.2.3", "--days", "7"])
    assert result.exit_code == 0, result.output
    certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "nats-1"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1", "10.1.2.3"]
    assert certificate.not_valid_after_utc < datetime.now(UTC) + 8 * DAY
    printed = result.output.replace("\n", " ")
    assert "client-key.pem" in printed
    assert "nats-server -c nats-server.conf" in printed


def test_init_refuses_to_replace_certificates_without_force(tmp_path):
    folder = str(tmp_path)
    assert CliRunner().invoke(app, ["init", folder]).exit_code == 0
    again = CliRunner().invoke(app, ["init", folder])
    assert isinstance(again.exception, TLSError)
    assert "--force" in str(again.exception)
    assert CliRunner().invoke(app, ["init", folder, "--force"]).exit_code == 0


def test_init_without_a_configuration_beside_names_the_flags_of_nats_server(tmp_path):
    printed = CliRunner().invoke(app, ["init", str(tmp_path)]).output
    assert f"nats-server -js --tlsverify --tlscacert {tmp_path}/ca.pem --tlscert {tmp_path}/server.pem" in printed
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "nats-3" in names.get_values_for_type(x509.DNSName)


def test_a_ca_file_with_a_negative_serial_number_is_read_without_a_warning(ca, tmp_path):
    """Systems' CA files hold some; `cryptography` warns of them, and here a warning is an error."""
    der = bytearray(x509.load_pem_x509_certificate(ca.cert_pem).public_bytes(serialization.Encoding.DER))
    serial = der.index(b"\xa0\x03\x02\x01\x02\x02") + 7  # behind the version: tag, length, then the number
    der[serial] = 0x80
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(ca.cert_pem + ssl.DER_cert_to_PEM_cert(bytes(der)).encode())
    assert client_context(ca=bundle).verify_mode == ssl.CERT_REQUIRED
