"""The measurements of a soak."""

from dataclasses import replace

from batch_pipeline_tests.guarantees.soak.measurements import (
    Sample,
    growth,
    max_backlog,
    of_oldest,
)


def test_measurements_compare_quarters_and_find_the_largest_backlog() -> None:
    """The first tenth of the oldest process of a part, and outliers, do not count."""
    samples = [
        Sample(
            seconds=at,
            landed=min(at, 4),
            processes={("Spark", 7, 0.0): {"MiB": 100 + at}},
            database={"published items": max(at - 2, 0)},
        )
        for at in range(20)
    ]
    samples[3].processes["Spark", 7, 0.0]["MiB"] = 9_999
    young = replace(samples[-1], processes={("Spark", 8, 5.0): {"MiB": 5}})
    assert growth(of_oldest([*samples, young], "Spark", "MiB")) == (104.5, 117.5)
    assert of_oldest([young], "Spark", "MiB") == []
    assert max_backlog(samples) == 2
