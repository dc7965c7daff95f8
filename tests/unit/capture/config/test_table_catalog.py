"""The settings of the user's catalog: `[table.catalog]`."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from secret import write_secret

from capture.cli.config import limits, problems, redact_value
from capture.config import table_catalog
from capture.config.load import gather_settings, load
from capture.config.secrets import check_exposure
from capture.errors import ConfigError
from capture.stores.own_store import HIDDEN
from natty.errors import how_to_install

BASE = 'stream = "ORDERS"\nstore = "lake"\n[table.catalog]\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "capture.toml"


def test_a_catalog_is_named_by_its_type_and_uri_and_the_entry_by_archive_and_stream(file: Path) -> None:
    file.write_text(BASE + 'type = "rest"\nuri = "https://lakekeeper/catalog"\nwarehouse = "lake"\n')
    catalog = load(file, environment={}).table.catalog
    assert catalog.identify("orders", "ORDERS") == ("orders", "ORDERS")
    assert catalog.read_properties() == {"uri": "https://lakekeeper/catalog", "warehouse": "lake"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('namespace = "raw.nats"', ("raw", "nats", "ORDERS")),
        ('namespace = "nats"\ntable = "js_{stream}"', ("nats", "js_ORDERS")),
    ],
)
def test_the_namespace_and_the_name_of_a_table_can_be_chosen(file: Path, text: str, name: tuple[str, ...]) -> None:
    file.write_text(BASE + f'type = "sql"\nuri = "sqlite:////tmp/c.db"\n{text}\n')
    assert load(file, environment={}).table.catalog.identify("orders", "ORDERS") == name


def test_glue_gets_names_in_lower_case(file: Path) -> None:
    file.write_text(BASE + 'type = "glue"\n')
    assert load(file, environment={}).table.catalog.identify("Orders", "ORDERS") == ("orders", "orders")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('type = "hive"', "must be one of rest, sql, glue in line"),
        ('type = "rest"', "a catalog of type rest needs its uri"),
        ('type = "sql"\nuri = "catalog.db"', "must be as SQLAlchemy writes it"),
        ('type = "rest"\nuri = "http://lakekeeper:8181"', "must begin with https://"),
        (
            'type = "rest"\nuri = "https://a"\nproperties.oauth2-server-uri = "http://a/t"',
            "oauth2-server-uri must begin with",
        ),
        ('type = "rest"\nuri = "https://a"\nproperties.oauth2-server-uri = "https://[a"', "oauth2-server-uri can't be"),
        ('type = "glue"\nuri = "http://glue:8181"', "the catalog's uri must begin with https://"),
        ('type = "glue"\nproperties."glue.endpoint" = "http://glue"', "glue.endpoint must begin with https://"),
        ('type = "rest"\nuri = "https://[lake"', "the catalog's uri can't be read"),
        ('type = "rest"\nuri = "https://a"\ntable = "orders"', "must contain {stream}"),
        ('type = "rest"\nuri = "https://a"\nnamespace = "a..b"', "has an empty level"),
        ('type = "rest"\nuri = "https://a"\nca = "nowhere.pem"', "nowhere.pem of the catalog is not a file"),
        ('type = "rest"\nuri = "https://a"\ntimeout = 0', "must be a number above 0"),
        ('type = "rest"\nurii = "https://a"', "did you mean `uri`?"),
        ('type = "rest"\nuri = "https://a"\nproperties_file = "nowhere"', "nowhere can't be read: No such file"),
    ],
)
def test_a_setting_that_can_not_be_used_is_a_sentence_that_names_the_file(file: Path, text: str, said: str) -> None:
    file.write_text(BASE + text)
    [problem] = problems(gather_settings(file, environment={}))
    assert said in problem
    assert str(file) in problem
    with pytest.raises(ConfigError, match=r"capture\.toml"):
        load(file, environment={})


def test_a_loopback_server_needs_no_tls(file: Path) -> None:
    file.write_text(BASE + 'type = "rest"\nuri = "http://127.0.0.1:8181"\n')
    assert problems(gather_settings(file, environment={})) == []
    [note] = limits(load(file, environment={}))
    assert note.startswith("a REST catalog compares nothing when an entry is replaced")


def test_a_package_that_is_not_installed_is_named_with_the_extra(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_catalog, "find_spec", lambda name: None)
    file.write_text(BASE + 'type = "sql"\nuri = "sqlite:////tmp/c.db"\n')
    [problem] = problems(gather_settings(file, environment={}))
    assert f"needs sqlalchemy; {how_to_install('catalogs')}" in problem


def test_secrets_come_from_a_private_file_or_a_variable_and_are_never_shown(file: Path) -> None:
    write_secret(file.parent / "secrets", "# of the lake\ncredential = id:it=is a secret\n\nscope=PRINCIPAL_ROLE:ALL\n")
    file.write_text(
        BASE + f'type = "rest"\nuri = "https://a"\nproperties_file = "{file.parent}/secrets"\n'
        '[table.catalog.properties]\nscope = "catalog"\n'
    )
    config = load(file, environment={"CAPTURE_TABLE__CATALOG__PROPERTIES__TOKEN": "tells nobody"})
    assert config.table.catalog.read_properties() == {
        "uri": "https://a",
        "credential": "id:it=is a secret",
        "scope": "catalog",
        "token": "tells nobody",
    }
    assert "tells nobody" not in repr(config)
    assert redact_value(("table", "catalog", "properties", "token"), "tells nobody") == HIDDEN
    uri = "postgresql://lake:tells-nobody@db/catalog"
    assert "tells-nobody" not in redact_value(("table", "catalog", "uri"), uri)
    assert "tells-nobody" not in repr(table_catalog.TableCatalog(type="sql", uri=uri))


@pytest.mark.parametrize(
    ("text", "said"),
    [("credential", "line 1 of the catalog's properties file"), ("=x", "is not NAME=VALUE")],
)
def test_a_line_that_is_no_property_is_named_without_its_content(file: Path, text: str, said: str) -> None:
    write_secret(file.parent / "secrets", text)
    file.write_text(BASE + f'type = "rest"\nuri = "https://a"\nproperties_file = "{file.parent}/secrets"\n')
    with pytest.raises(ConfigError, match=said) as raised:
        load(file, environment={})
    assert "credential" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('type = "sql"\nuri = "postgresql://lake:secret@db/catalog"', "table.catalog.uri"),
        ('type = "rest"\nuri = "https://a"\nproperties = {token = "x"}', "table.catalog.properties.token"),
    ],
)
def test_a_configuration_with_such_secrets_must_be_private(file: Path, text: str, named: str) -> None:
    file.write_text(BASE + text)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=named):
        check_exposure(file, gather_settings(file, environment={}))


def test_a_properties_file_that_others_may_read_is_refused(file: Path) -> None:
    (file.parent / "secrets").write_text("token=x")
    (file.parent / "secrets").chmod(0o644)
    file.write_text(BASE + f'type = "rest"\nuri = "https://a"\nproperties_file = "{file.parent}/secrets"\n')
    with pytest.raises(ConfigError, match="chmod 600"):
        load(file, environment={})


def test_the_documents_show_every_setting_with_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs" / "table.md").read_text()
    [block] = [one for one in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[table.catalog]" in one]
    monkeypatch.chdir(tmp_path)
    write_secret(tmp_path / "catalog.properties", "token=x")
    (tmp_path / "capture.toml").write_text(f'stream = "S"\nstore = "lake"\n{block}')
    config = load(tmp_path / "capture.toml", environment={})
    assert problems(gather_settings(tmp_path / "capture.toml", environment={})) == []
    shown = msgspec.toml.decode(block)["table"]["catalog"]
    assert {*shown, "properties"} == {*table_catalog.TableCatalog.__struct_fields__}
    chosen = {"type", "uri", "warehouse", "namespace", "properties_file"}
    for name in shown.keys() - chosen:
        assert shown[name] == getattr(table_catalog.TableCatalog(), name), name
    assert config.table.catalog.read_properties()["token"] == "x"


@pytest.mark.parametrize("password", ["s3cret", "s3cret/w", "w/s3cret", "w@s3cret", "w:/@s3cret"])
def test_a_password_in_the_uri_is_hidden_also_if_it_is_not_escaped(file: Path, password: str) -> None:
    write_secret(file, BASE + f'type = "sql"\nuri = "postgresql://me:{password}@host/db"\n')
    catalog = load(file, environment={}).table.catalog
    assert "s3cret" not in repr(catalog)
    assert f"//{HIDDEN}@host/db" in repr(catalog)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="holds secrets"):
        load(file, environment={})
