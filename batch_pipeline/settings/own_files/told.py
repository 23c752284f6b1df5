"""A proposal as the text of its stream file, and as values for programs."""

from typing import Any

from batch_pipeline.model.location import shown
from batch_pipeline.settings.own_files.proposal import Proposal, bad_of
from batch_pipeline.settings.stream_file import COMPONENT
from batch_pipeline.settings.stream_text import stream_text
from batch_pipeline.settings.units import format_bytes

_MOST_COLUMNS = 50


def text_of(proposal: Proposal) -> str:
    """Write the stream file, with what was seen as comments."""
    machine, sample = proposal.machine, proposal.sample
    notes = {
        "batch.max_weight": (
            f"for {machine.cores} cores and {format_bytes(machine.memory_bytes)} of memory; the "
            f"largest file has {format_bytes(proposal.plan.largest_bytes)}"
        ),
        "batch.max_count": "files in a batch",
    }
    keys = [one.name for one in sample.columns if one.name.lower().endswith("id")]
    if keys:
        notes["key_properties"] = f"columns that together identify a record, such as {keys[0]}"
    if sample.bad:
        notes["on_bad_record"] = f"{bad_of(sample)}; more than this share fails a batch"
    heading = [f"Columns (records looked at: {sample.records}):"]
    heading += [f"  {one.name}: {one.type_text}" for one in sample.columns[:_MOST_COLUMNS]]
    if len(sample.columns) > _MOST_COLUMNS:
        heading.append(f"  and {len(sample.columns) - _MOST_COLUMNS} more")
    return stream_text(COMPONENT, proposal.attributes, notes=notes, heading=heading)


def proposal_json(proposal: Proposal) -> dict[str, Any]:
    """Describe a proposal for programs."""
    sample, plan, source = proposal.sample, proposal.plan, proposal.stream.source
    return {
        "stream": proposal.stream.name,
        "source": source.place,
        "files_found": proposal.files_found,
        "bytes_found": proposal.bytes_found,
        "include": proposal.attributes["source"]["include"],
        "exclude": proposal.attributes["source"].get("exclude", []),
        "format": source.format.value,
        "options": proposal.attributes["source"].get("options", {}),
        "left_out": [
            {"patterns": list(one.patterns), "files": one.files, "reason": one.reason}
            for one in proposal.left_out
        ],
        "columns": {one.name: one.type_text for one in sample.columns},
        "records_sampled": sample.records,
        "records_malformed": sample.bad,
        "first_malformed": _first_bad(proposal),
        "max_weight": proposal.stream.limits.max_weight,
        "max_count": proposal.stream.limits.max_count,
        "plan": {
            "files": plan.files,
            "weight_bytes": plan.size_bytes,
            "batches": plan.batches,
            "oversized": plan.heavier,
        },
        "notes": list(proposal.notes),
    }


def _first_bad(proposal: Proposal) -> dict[str, Any] | None:
    first = proposal.sample.first_bad
    if first is None:
        return None
    location, line, reason = first
    return {"location": location, "file": shown(location), "line": line, "reason": reason}
