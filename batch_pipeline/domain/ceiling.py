"""The ways in which the highest id below which no row can still appear may be found."""

from enum import StrEnum


class Strategy(StrEnum):
    """How a ceiling is found."""

    LOCKS = "locks"  # Postgres: who held the table locked when the highest id was read
    LOCKING_READ = "locking_read"  # MySQL, MariaDB: a read that meets open inserts
    SQLITE = "sqlite"  # one writer at a time: the highest id
    REGISTRAR = "registrar"  # ids are given in commit order: the highest id
    SETTLE = "settle"  # rows younger than a delay are left alone
