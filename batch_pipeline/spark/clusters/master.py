"""Tells where the executors of a Spark master run. Nothing is asked but, for one look, its port."""

import ipaddress
import re
import socket
from contextlib import suppress
from enum import StrEnum

from batch_pipeline.domain.errors import SparkUnavailableError

ANSWER_TIMEOUT_SECONDS = 5
_STANDALONE = "spark://"
_STANDALONE_PORT = 7077


class Place(StrEnum):
    """Where executors run: threads of the driver, processes beside it, or other machines."""

    DRIVER = "driver"
    MACHINE = "machine"
    ELSEWHERE = "elsewhere"


def place_of(master: str) -> Place:
    """Tell where the executors of a master run.

    A standalone master on the loopback interface has its workers on this machine, for no other can
    reach it.
    """
    if re.fullmatch(r"local(\[.*\])?", master):
        return Place.DRIVER
    if is_local_cluster(master):
        return Place.MACHINE
    addresses = _addresses(master)
    if addresses and all(_is_loopback(host) for host, _ in addresses):
        return Place.MACHINE
    return Place.ELSEWHERE


def is_local_cluster(master: str) -> bool:
    """Tell whether the driver starts the executors itself, as processes of its own user."""
    return master.startswith("local-cluster[")


def check_reachable(master: str, timeout_seconds: float = ANSWER_TIMEOUT_SECONDS) -> None:
    """Look whether one of the addresses of a standalone master answers; Spark takes a minute.

    Raises:
        SparkUnavailableError: none does.
    """
    reasons: list[str] = []
    for host, port in _addresses(master):
        try:
            socket.create_connection((host, port), timeout=timeout_seconds).close()
            return
        except OSError as error:
            reasons.append((error.strerror or "no answer in time").lower())
    if reasons:
        raise SparkUnavailableError(master, reasons[-1])


def _addresses(master: str) -> list[tuple[str, int]]:
    """Give host and port of each address of a standalone master; none for other masters."""
    if not master.startswith(_STANDALONE):
        return []
    found: list[tuple[str, int]] = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if host and port.isdecimal():
            found.append((host.strip("[]"), int(port)))
        elif address:
            found.append((address.strip("[]"), _STANDALONE_PORT))
    return found


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
