"""Hypothesis strategies for JSON text: all the ways to write a value."""

import json

from hypothesis import strategies as st

INTEGERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1]),
    st.sampled_from([2**64, 10**37, 10**38 - 1, -(10**38) + 1, 10**38, 10**44]),
).map(str)
SHORT_INTEGERS = st.integers(-(2**63), 2**63 - 1).map(str)
PRICES = st.builds(  # about as many digits as a double holds
    lambda units, places: f"{units // 10**places}.{units % 10**places:0{places}d}",
    st.integers(10**13, 10**18),
    st.integers(1, 9),
)
NUMBERS = st.one_of(
    PRICES,
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=9).map("{:f}".format),
    st.sampled_from(["-0.0", "0.0", "1.50", "1e2", "1E+2", "0e10", "-0e-5", "0.1", "100.0"]),
    st.sampled_from(["5e-324", "1.7976931348623157e308", "2.2250738585072014E-308"]),
    st.sampled_from(["1e400", "-1e400", "1e-400", "1e99999999999999999999", "3e-99999999999999"]),
    st.sampled_from(["0.1000000000000000055511151231257827", "12345678901234567890.123456789"]),
    st.sampled_from(["9007199254740993.0", "1e22", "1e23", "123456789012345680000.0", "1" * 400]),
)
_CHARS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=6)
_ODD = st.sampled_from(['"', "\\", "\\u0022:", '":"', "\u2028", "NaN", "2026-01-31", "007", "null"])
STRINGS = st.builds(
    lambda text, ascii_only: json.dumps(text, ensure_ascii=ascii_only),
    st.one_of(_CHARS, _ODD),
    st.booleans(),
)
LONE_SURROGATES = st.sampled_from([r'"\ud800"', r'"x\udfffy"', r'"\ud83d\u0041"'])
ESCAPED = st.sampled_from([r'"\u0022"', r'"\u0041\/"', r'"\ud83d\ude00"', r'"\u0000"', r'"\""'])
_SCALARS = st.one_of(
    INTEGERS, NUMBERS, STRINGS, ESCAPED, st.sampled_from(["true", "false", "null"])
)
_BLANKS = st.sampled_from(["", " ", "\t ", "\r "])


def _array(items: list[str], blank: str) -> str:
    return f"[{blank}{f',{blank}'.join(items)}]"


def _object(fields: dict[str, str], blank: str) -> str:
    pairs = [f"{json.dumps(name)}{blank}:{blank}{value}" for name, value in fields.items()]
    return f"{{{f'{blank},'.join(pairs)}}}"


NAMES = st.sampled_from(["a", "b", "A", "ä", "a b", "a.b", 'q"q', "q\\", "", "\u2028", "nul\x00l"])
ARRAYS = st.recursive(
    st.builds(_array, st.lists(_SCALARS, max_size=3), _BLANKS),
    lambda inner: st.builds(_array, st.lists(inner, max_size=3), _BLANKS),
    max_leaves=4,
)
OBJECTS = st.builds(
    _object, st.dictionaries(NAMES, st.one_of(_SCALARS, ARRAYS), max_size=3), _BLANKS
)
KINDS = {
    "integer": SHORT_INTEGERS,
    "integers": INTEGERS,
    "prices": PRICES,
    "numbers": st.one_of(SHORT_INTEGERS, NUMBERS),
    "all numbers": st.one_of(INTEGERS, NUMBERS),
    "boolean": st.sampled_from(["true", "false"]),
    "string": st.one_of(STRINGS, ESCAPED),
    "object": OBJECTS,
    "array": ARRAYS,
    "all": st.one_of(_SCALARS, ARRAYS, OBJECTS, LONE_SURROGATES),
    "nothing": st.just("null"),
}


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, str]]:
    """Draw records whose columns have one kind each; only the first is never null or absent."""
    kinds = draw(st.dictionaries(NAMES, st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    first = next(iter(kinds))
    drawn = []
    for _ in range(draw(st.integers(1, 6))):
        record = {}
        for name, kind in kinds.items():
            form = "value" if name == first else draw(st.sampled_from(["value"] * 4 + ["", "null"]))
            if form:
                record[name] = draw(KINDS[kind]) if form == "value" else form
        names = draw(st.permutations(sorted(record)))
        drawn.append({name: record[name] for name in names})
    return drawn


def text_of(record: dict[str, str], *, blank: str = "") -> str:
    return _object(record, blank)
