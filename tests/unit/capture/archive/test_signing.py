import base64
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from secret import write_secret

from capture.archive.keyfile import parse_keys
from capture.archive.signing import PublicKeys, Signer, SigningKeys, load_signer, split, vouch
from capture.errors import ConfigError, SignatureError

MINE, OTHER = bytes(range(32)), bytes(range(32, 64))
KEYS = SigningKeys({"mine": MINE})
PATH = "_manifest/0000000007-3.json"
DOCUMENT = b'{"number":7,"blocks":[{"path":"a"}]}'
SIGNED = KEYS.sign("orders", PATH, DOCUMENT)


def line(name, key):
    return f"{name}:{base64.b64encode(key).decode()}\n"


def test_a_signed_document_is_the_document_with_one_more_field_and_the_key_checks_it():
    KEYS.public.check("orders", PATH, SIGNED)
    document, signature = split(SIGNED)
    assert document == DOCUMENT
    assert signature.key == "mine"
    assert len(signature.ed25519) == 64


def test_any_byte_that_is_changed_is_noticed():
    for at in range(len(SIGNED)):
        for bit in (1, 4, 32):
            changed = bytearray(SIGNED)
            changed[at] ^= bit
            with pytest.raises(SignatureError):
                KEYS.public.check("orders", PATH, bytes(changed))


@pytest.mark.parametrize(
    ("archive", "path"),
    [("others", PATH), ("orders", "_manifest/0000000008-3.json"), ("orders", "_table/0000000007-3.json")],
)
def test_a_document_from_elsewhere_is_noticed(archive, path):
    with pytest.raises(SignatureError, match="wrong signature: it was changed, moved there from another place"):
        KEYS.public.check(archive, path, SIGNED)


def test_another_key_is_noticed_whatever_its_name():
    by_other = SigningKeys({"other": OTHER}).sign("orders", PATH, DOCUMENT)
    with pytest.raises(SignatureError, match=r"signed with the key 'other'; the trusted ones are PublicKeys\(mine\)"):
        KEYS.public.check("orders", PATH, by_other)
    with pytest.raises(SignatureError, match="another key that is called 'mine'"):
        KEYS.public.check("orders", PATH, SigningKeys({"mine": OTHER}).sign("orders", PATH, DOCUMENT))


def test_a_document_without_a_signature_is_told_so():
    with pytest.raises(SignatureError, match=f"{PATH} is not signed"):
        KEYS.public.check("orders", PATH, DOCUMENT)


@pytest.mark.parametrize(
    "document",
    [
        b'{"config":{"metadata":{"a":"b","signature":{"key":"k","ed25519":"' + b"A" * 86 + b'=="}}}}',
        b'{"a":1,"signature":"none"}',
        b'{"a":",\\"signature\\":{\\"key\\":\\"k\\"}}"}',
    ],
)
def test_what_only_looks_like_a_signature_is_content(document):
    assert split(document) == (document, None)
    KEYS.public.check("orders", PATH, KEYS.sign("orders", PATH, document))


@given(st.text(min_size=1), st.binary(max_size=50))
def test_any_name_of_a_key_and_any_content_go(name, content):
    keys = SigningKeys({name.encode("utf-8", "replace").decode(): MINE})
    document = b'{"a":"' + base64.b64encode(content) + b'"}'
    keys.public.check("ä", "p", keys.sign("ä", "p", document))


def test_the_first_key_signs_and_all_are_trusted():
    rotated = SigningKeys({"new": OTHER, "mine": MINE})
    assert split(rotated.sign("orders", PATH, DOCUMENT))[1].key == "new"
    rotated.public.check("orders", PATH, SIGNED)


def test_a_document_is_signed_once():
    with pytest.raises(ValueError, match="signed already"):
        KEYS.sign("orders", PATH, SIGNED)


def test_private_keys_go_nowhere():
    with pytest.raises(TypeError, match="never sent anywhere"):
        pickle.dumps(KEYS)
    assert repr(KEYS) == "SigningKeys(mine)"
    assert base64.b64encode(MINE).decode() not in repr(Signer("orders", KEYS))


def test_keys_come_from_a_file_or_else_from_the_environment(tmp_path):
    file = tmp_path / "keys"
    write_secret(file, line("new", OTHER) + "# the old one\n" + line("mine", MINE))
    environment = {"CAPTURE_SIGNING_KEYS": line("mine", MINE)}
    assert repr(SigningKeys.load(str(file), environment)) == "SigningKeys(new, mine)"
    assert repr(SigningKeys.load("", environment)) == "SigningKeys(mine)"
    assert SigningKeys.load("", {}) is None
    assert load_signer("orders", "") is None


def test_public_keys_are_written_as_they_are_read(tmp_path):
    file = tmp_path / "public"
    file.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.public.lines().items()))
    PublicKeys.load(str(file)).check("orders", PATH, SIGNED)
    assert base64.b64encode(MINE).decode() not in file.read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no key"),
        ("a", "key 1 must be NAME:BASE64"),
        ("a:!", "the key 'a' is not base64"),
        ("a:AAAA", "the key 'a' has 3 bytes, not 32"),
        (line("a", MINE) * 2, "key 2 must be NAME:BASE64, each name once"),
    ],
)
def test_bad_keys_are_named_and_never_quoted(text, why):
    with pytest.raises(ConfigError, match=f"^here: {why}") as told:
        parse_keys(text, "here")
    assert base64.b64encode(MINE).decode() not in str(told.value)


def test_a_key_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere can't be read: No such file"):
        SigningKeys.load(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"nowhere can't be read: No such file"):
        PublicKeys.load(str(tmp_path / "nowhere"))


def test_an_archive_without_a_name_cant_be_signed(tmp_path):
    write_secret(tmp_path / "key", line("mine", MINE))
    with pytest.raises(ConfigError, match="give archive, or stream"):
        load_signer("", str(tmp_path / "key"))


def test_a_leader_without_a_key_does_not_go_on_from_what_is_signed():
    with pytest.raises(SignatureError, match="signed with the key 'mine', and this node has no key to sign with"):
        vouch(None, PATH, SIGNED, unsigned_too=True)
    vouch(None, PATH, DOCUMENT, unsigned_too=False)


def test_a_leader_with_a_key_goes_on_from_what_it_trusts_and_begins_where_another_vouches():
    signer = Signer("orders", KEYS)
    vouch(signer, PATH, SIGNED, unsigned_too=False)
    vouch(signer, PATH, DOCUMENT, unsigned_too=True)
    with pytest.raises(SignatureError, match="is not signed"):
        vouch(signer, PATH, DOCUMENT, unsigned_too=False)
    with pytest.raises(SignatureError, match="trusted ones"):
        vouch(signer, PATH, SigningKeys({"other": OTHER}).sign("orders", PATH, DOCUMENT), unsigned_too=True)
