"""What commands tell of limits that were learned."""

from typing import Any

from batch_pipeline.domain.fitting import Learned
from batch_pipeline.settings.units import limit_sentences


def learned_json(learned: Learned | None) -> dict[str, Any] | None:
    """Give what was learned for programs, with the sentences for people.

    Weights are in bytes, or as the meta table counts.
    """
    if learned is None:
        return None
    return {
        "target_seconds": learned.target_seconds,
        "max_weight": learned.max_weight,
        "most_weight": learned.most_weight,
        "wanted_weight": learned.wanted_weight,
        "weight_per_second": learned.weight_per_second,
        "attempts": learned.attempts,
        "is_least": learned.is_least,
        "sentences": limit_sentences(learned),
    }
