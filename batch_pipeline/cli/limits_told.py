"""What commands tell of limits that were learned."""

from datetime import timedelta
from typing import Any

from batch_pipeline.domain.fitting import Learned
from batch_pipeline.settings.units import format_bytes, format_duration


def learned_json(learned: Learned | None) -> dict[str, Any] | None:
    """Give what was learned for programs; weights in bytes, or as the meta table counts."""
    if learned is None:
        return None
    return {
        "target_seconds": learned.target_seconds,
        "max_weight": learned.max_weight,
        "most_weight": learned.most_weight,
        "wanted_weight": learned.wanted_weight,
        "weight_per_second": learned.weight_per_second,
        "attempts": learned.attempts,
    }


def learned_lines(told: dict[str, Any] | None) -> list[str]:
    """Say the limit and why it is that, from what `learned_json` gives."""
    if told is None:
        return []
    limit, wanted = format_bytes(told["max_weight"]), told["wanted_weight"]
    target = format_duration(timedelta(seconds=told["target_seconds"]))
    if wanted is None:
        return [f"at most {limit}; how much takes {target} is not known yet"]
    speed = format_bytes(round(told["weight_per_second"]))
    lines = [f"at most {limit}; {target} are {format_bytes(wanted)}, at {speed}/s"]
    lines.append(f"by the last {told['attempts']} batches that were full or took longer")
    return lines
