"""Which columns of a stream a catalog lets through.

Only what the catalog says; that nothing else reaches a consumer is the stream's care.
"""

from collections.abc import Iterable, Sequence

from singer_sdk.singerlib.catalog import MetadataMapping

from batch_pipeline.singer.tap.settings import TapSettingError


def chosen_columns(
    stream: str, metadata: MetadataMapping, *, listed: Iterable[str], newest: Sequence[str]
) -> frozenset[str] | None:
    """Give the columns to send, None for all of them.

    `listed` are the columns of the catalog's schema, `newest` all of the stream's in their order.
    A catalog that deselects a column, or has one taken out, lets only those through that it
    selects. One that merely is older than the last columns deselects none of them.

    Raises:
        TapSettingError: a part of a column is deselected.
    """
    mask = metadata.resolve_selection()
    known = dict.fromkeys(listed, True)
    for breadcrumb in metadata:
        if len(breadcrumb) == 2:
            known[breadcrumb[1]] = mask[breadcrumb]
        elif len(breadcrumb) > 2 and not mask[breadcrumb] and mask[breadcrumb[:2]]:
            problem = f"{'.'.join(breadcrumb[1::2])} of the stream {stream} is deselected"
            step = (
                "Nothing was sent: only whole columns can be left out. Deselect "
                f"{breadcrumb[1]}, or use `select` or `stream_maps` in the stream file."
            )
            raise TapSettingError("catalog", problem, step)
    present = [name for name in newest if name in known]
    if all(known.values()) and present == list(newest[: len(present)]):
        return None
    return frozenset(name for name, is_selected in known.items() if is_selected)
