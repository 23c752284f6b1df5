"""Where the executors of a Spark master run."""

import pytest

from batch_pipeline.domain.errors import SparkUnavailableError
from batch_pipeline.spark.clusters.master import Place, check_reachable, place_of


@pytest.mark.parametrize(
    ("master", "place"),
    [
        ("local", Place.DRIVER),
        ("local[*]", Place.DRIVER),
        ("local[2, 4]", Place.DRIVER),
        ("local-cluster[2,1,1024]", Place.MACHINE),
        ("spark://127.0.0.1:7077", Place.MACHINE),
        ("spark://localhost", Place.MACHINE),
        ("spark://[::1]:7077", Place.MACHINE),
        ("spark://localhost:7077,10.0.0.1:7077", Place.ELSEWHERE),
        ("spark://localhost.example.org:7077", Place.ELSEWHERE),
        ("k8s://https://127.0.0.1:6443", Place.ELSEWHERE),
        ("yarn", Place.ELSEWHERE),
    ],
)
def test_place_of_a_master(master: str, place: Place) -> None:
    """Only a master that no other machine can reach has all its executors here."""
    assert place_of(master) is place


def test_master_that_does_not_answer_is_refused_with_the_reason() -> None:
    """All addresses are tried before that."""
    with pytest.raises(SparkUnavailableError) as raised:
        check_reachable("spark://127.0.0.1:1,127.0.0.1:2")
    assert raised.value.reason == "connection refused"


@pytest.mark.parametrize("master", ["yarn", "k8s://https://127.0.0.1:1", "local-cluster[1,1,1]"])
def test_master_whose_address_is_not_known_is_left_to_spark(master: str) -> None:
    """Nothing is said against it."""
    check_reachable(master)
