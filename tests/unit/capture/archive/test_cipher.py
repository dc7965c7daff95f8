from __future__ import annotations

import base64
import json
import pickle
import random
import struct
from io import SEEK_CUR, SEEK_END, BytesIO
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap
from hypothesis import given
from hypothesis import strategies as st
from secret import write_secret

from capture.archive.encryption import CHUNK_BYTES, MAGIC, Facts, Keys, read_header
from capture.config.load import load
from capture.errors import CipherError, ConfigError

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
BLOCK = Facts("ORDERS", "eu", 3600, 1, 9, 9)
DATA = b"what nobody else may read" * 10
SETTINGS = {"stream": "ORDERS", "store": "file:///nowhere"}


def text(**keys: bytes) -> str:
    return "".join(f"{name}:{base64.b64encode(key).decode()}\n" for name, key in keys.items())


@given(st.binary(max_size=300))
def test_what_was_encrypted_comes_back(data: bytes) -> None:
    keys = Keys({"new": NEW})
    encrypted = keys.encrypt(data, BLOCK)
    assert keys.decrypt(encrypted, BLOCK) == data
    _, begins = read_header(encrypted)
    assert len(data) < 8 or data not in encrypted[begins:]


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5])
def test_a_file_is_encrypted_piece_by_piece_into_the_same_kind_of_object(size: int) -> None:
    keys, data, encrypted = Keys({"new": NEW}), random.Random(size).randbytes(size), BytesIO()
    keys.encrypt_file(BytesIO(data), encrypted, BLOCK)
    assert keys.decrypt(encrypted.getvalue(), BLOCK) == data
    keys.encrypt_file(BytesIO(data), again := BytesIO(), BLOCK)
    _, begins = read_header(encrypted.getvalue())
    assert again.getvalue()[begins:] != encrypted.getvalue()[begins:]  # another key, another nonce; 16 bytes at least


@given(st.binary(max_size=10_000), st.lists(st.tuples(st.integers(0, 12_000), st.integers(-1, 5000)), max_size=5))
def test_every_part_of_an_object_s_file_is_decrypted_by_itself(data: bytes, parts: list[tuple[int, int]]) -> None:
    keys, wanted = Keys({"new": NEW}), BytesIO(data)
    plain = keys.decrypt_file(BytesIO(keys.encrypt(data, BLOCK)), BLOCK)
    assert plain.seek(0, SEEK_END) == len(data)
    assert plain.seek(-len(data), SEEK_CUR) == 0
    assert plain.readall() == data
    for start, size in parts:
        assert plain.seek(start) == wanted.seek(start)
        assert plain.read(size) == wanted.read(size)
        assert plain.tell() == wanted.tell()


def test_an_object_s_file_is_never_read_as_a_whole() -> None:
    asked = []

    class Noted(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(size)
            return super().read(size)

    keys, data = Keys({"k": OLD}), bytes(5 * CHUNK_BYTES + 1)
    plain = keys.decrypt_file(Noted(keys.encrypt(data, BLOCK)), BLOCK)
    assert plain.read(100) == bytes(100)
    assert len(asked) > 5
    assert all(size is not None and 0 < size <= CHUNK_BYTES for size in asked)


def test_every_object_has_a_key_and_a_nonce_of_its_own() -> None:
    keys = Keys({"new": NEW})
    one, other = (read_header(keys.encrypt(DATA, BLOCK))[0] for _ in range(2))
    assert one.nonce != other.nonce
    assert aes_key_unwrap(NEW, one.wrapped_key) != aes_key_unwrap(NEW, other.wrapped_key)


def test_the_first_key_encrypts_and_every_key_decrypts() -> None:
    before = Keys({"old": OLD}).encrypt(DATA, BLOCK)
    rotated = Keys({"new": NEW, "old": OLD})
    assert read_header(rotated.encrypt(DATA, BLOCK))[0].key_id == "new"
    assert rotated.decrypt(before, BLOCK) == DATA


def test_a_missing_key_is_named() -> None:
    encrypted = Keys({"old": OLD}).encrypt(DATA, BLOCK)
    with pytest.raises(CipherError, match=r"encrypted with the key 'old'; the given ones are Keys\(new\)"):
        Keys({"new": NEW}).decrypt(encrypted, BLOCK)


def test_a_wrong_key_is_named() -> None:
    encrypted = Keys({"k": OLD}).encrypt(DATA, BLOCK)
    with pytest.raises(CipherError, match="the given key 'k' is not the one that it was encrypted with"):
        Keys({"k": NEW}).decrypt(encrypted, BLOCK)


def test_every_changed_byte_and_every_cut_is_noticed() -> None:
    keys = Keys({"k": OLD})
    encrypted = keys.encrypt(b"short", BLOCK)
    for at in range(len(encrypted)):
        with pytest.raises(CipherError):
            keys.decrypt(encrypted[:at] + bytes([encrypted[at] ^ 1]) + encrypted[at + 1 :], BLOCK)
        with pytest.raises(CipherError):
            keys.decrypt_file(BytesIO(encrypted[:at] + bytes([encrypted[at] ^ 1]) + encrypted[at + 1 :]), BLOCK)
        with pytest.raises(CipherError):
            keys.decrypt(encrypted[:at], BLOCK)
        with pytest.raises(CipherError):
            keys.decrypt_file(BytesIO(encrypted[:at]), BLOCK)


@pytest.mark.parametrize(
    "other", [{"stream": "X"}, {"key": "us"}, {"interval": 0}, {"first": 2}, {"last": 8}, {"count": 8}]
)
def test_a_block_in_another_s_place_is_noticed(other: dict[str, object]) -> None:
    keys = Keys({"k": OLD})
    place = Facts(**{name: getattr(BLOCK, name) for name in BLOCK.__struct_fields__} | other)  # type: ignore[arg-type]
    with pytest.raises(CipherError, match="it is another object, ORDERS 1–9, key 'eu', in the place of"):
        keys.decrypt(keys.encrypt(DATA, BLOCK), place)
    with pytest.raises(CipherError, match="it is another object, ORDERS 1–9, key 'eu', in the place of"):
        keys.decrypt_file(BytesIO(keys.encrypt(DATA, BLOCK)), place)


def test_the_facts_in_the_header_can_not_be_exchanged_either() -> None:
    keys = Keys({"k": OLD})
    encrypted = keys.encrypt(DATA, BLOCK)
    forged = encrypted.replace(b'"eu"', b'"us"')
    with pytest.raises(CipherError, match="was changed or cut off"):
        keys.decrypt(forged, Facts("ORDERS", "us", 3600, 1, 9, 9))


def test_it_is_decrypted_by_a_dozen_lines() -> None:
    encrypted = Keys({"k": OLD}).encrypt(DATA, BLOCK)
    assert encrypted[:8] == MAGIC == b"CAPENC1\n"
    (length,) = struct.unpack_from(">I", encrypted, 8)
    begins = 12 + length
    header = json.loads(encrypted[12:begins])
    key = aes_key_unwrap(OLD, base64.b64decode(header["wrapped_key"]))
    nonce = base64.b64decode(header["nonce"])
    assert AESGCM(key).decrypt(nonce, encrypted[begins:], encrypted[:begins]) == DATA
    assert header["holds"] == {"stream": "ORDERS", "key": "eu", "interval": 3600, "first": 1, "last": 9, "count": 9}


# --- where keys come from --------------------------------------------------------------------------------------------


def test_keys_come_from_a_file_else_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    write_secret(file, "# the newest first\n" + text(new=NEW, old=OLD))
    assert repr(Keys.load(str(file), {"CAPTURE_KEYS": text(other=OLD)})) == "Keys(new, old)"
    assert repr(Keys.load("", {"CAPTURE_KEYS": text(other=OLD).replace("\n", " ")})) == "Keys(other)"
    assert Keys.load("", {}) is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "there is no key"),
        ("no-colon", "key 1 must be NAME:BASE64"),
        (":c2VjcmV0", "key 1 must be NAME:BASE64"),
        ("secret:c2VjcmV0", "the key 'secret' has 6 bytes, not 32"),
        ("k:%%%", "the key 'k' is not base64"),
        (text(k=OLD) * 2, "key 2 must be NAME:BASE64, each name once"),
    ],
)
def test_a_bad_key_is_told_without_quoting_it(content: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    write_secret(file, content)
    with pytest.raises(ConfigError, match=sentence) as caught:
        Keys.load(str(file), {})
    shown = f"{caught.value!r} {caught.value.__cause__!r}"
    assert str(file) in shown
    assert not any(word.partition(":")[2] in shown for word in content.split() if word.partition(":")[2])


def test_a_missing_key_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the key file .*none can't be read: No such file"):
        Keys.load(str(tmp_path / "none"), {})


def test_keys_are_never_shown_and_never_sent() -> None:
    keys = Keys({"k": OLD})
    assert repr(keys) == str(keys) == "Keys(k)"
    with pytest.raises(TypeError, match="never sent"):
        pickle.dumps(keys)


def test_the_configuration_knows_where_the_keys_are_and_not_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPTURE_KEYS", text(k=OLD))
    config = load(None, {**SETTINGS, "encrypt": True})
    assert base64.b64encode(OLD).decode() not in repr(config)
    assert repr(config.keys()) == "Keys(k)"


def test_encryption_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPTURE_KEYS", raising=False)
    with pytest.raises(ConfigError, match="encrypt is on and there is no key: name a key_file, or set CAPTURE_KEYS"):
        load(None, {**SETTINGS, "encrypt": "true"}, environment={}).keys()


def test_a_header_that_claims_gigabytes_is_not_read() -> None:
    claimed = MAGIC + (2**32 - 1).to_bytes(4, "big")
    with pytest.raises(CipherError, match="its header is damaged: it has 4,294,967,295 bytes"):
        Keys({"k": bytes(32)}).decrypt_file(BytesIO(claimed + bytes(100)), None)
