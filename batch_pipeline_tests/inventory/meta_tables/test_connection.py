"""URLs of meta tables' databases: how they are understood, and what is never shown of them."""

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.meta_tables.connection import open_meta_engine
from batch_pipeline.model.errors import SettingError


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgres://u:p@host/db", "postgresql+psycopg"),
        ("postgresql://u:p@host/db", "postgresql+psycopg"),
        ("postgresql+psycopg2://u:p@host/db", "postgresql+psycopg"),
        ("mysql://u:p@host/db", "mysql+pymysql"),
        ("mariadb://u:p@host/db", "mariadb+pymysql"),
        ("mysql+pymysql://u:p@host/db", "mysql+pymysql"),
        ("sqlite:////tmp/meta.db", "sqlite"),
    ],
)
def test_url_is_spoken_by_a_driver_that_is_there(url: str, driver: str) -> None:
    """Expect bare URLs to mean the drivers that this product brings."""
    assert open_meta_engine(url).url.drivername == driver


@pytest.mark.parametrize(
    "url",
    [
        "geheim",
        "postgresql://u:geheim@host:port/db",
        "postgresql://u:ge@heim@geheim/db",
        "nosuch://u:geheim@host/db",
        "mssql+pyodbc://u:geheim@host/db",
    ],
)
def test_url_that_cannot_be_used_is_not_shown(url: str) -> None:
    """Expect the setting to be named, and neither user nor password nor host."""
    with pytest.raises(SettingError, match="BATCH_PIPELINE_META_CONN") as caught:
        open_meta_engine(url)
    assert "geheim" not in str(caught.value)


def test_sqlite_file_that_is_not_there_is_not_made(tmp_path: object) -> None:
    """Expect an error at the first connection, whatever characters the path has."""
    engine = open_meta_engine(f"sqlite:///{tmp_path}/a b%20.db")
    with pytest.raises(sa.exc.OperationalError, match="unable to open"):
        engine.connect()


def test_sqlite_uri_of_the_user_is_left_as_it_is() -> None:
    """Expect a URI with parameters of its own to be used word for word."""
    url = open_meta_engine("sqlite:///file:meta.db?mode=ro&uri=true").url
    assert (url.database, dict(url.query)) == ("file:meta.db", {"mode": "ro", "uri": "true"})


def test_options_of_the_user_come_last() -> None:
    """Expect the user's own settings of a session to win over ours."""
    url = "postgresql://u@host/db?options=-c%20lock_timeout%3D1s&application_name=mine"
    engine = open_meta_engine(url)
    (_, given) = engine.dialect.create_connect_args(engine.url)
    assert given["application_name"] == "mine"
    sent: dict[str, object] = {}

    def connect(*event: object) -> None:
        assert isinstance(event[3], dict)
        sent.update(event[3])
        raise ConnectionError

    sa.event.listen(engine, "do_connect", connect)
    with pytest.raises(ConnectionError):
        engine.connect()
    assert str(sent["options"]).endswith("-c lock_timeout=1s")
    assert sent["application_name"] == "mine"
