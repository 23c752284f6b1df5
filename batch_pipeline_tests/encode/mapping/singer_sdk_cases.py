"""Records and mapper options for which the results must equal those of the Singer SDK."""

from typing import Any

ADA = (
    '{"id":1,"email":"Ada@Example.org","name":"Ada","status":"paid","amount":12.50,"qty":2,'
    '"tags":["a","b"],"address":{"city":"Bern","geo":{"lat":46.9,"lon":7.4}},"ok":true}'
)
BOB = (
    '{"id":2,"email":null,"name":"Bob","status":"open","amount":1e2,"qty":-3,'
    '"tags":[],"address":{"city":"Zürich","geo":{}},"ok":false}'
)
NULLS = (
    '{ "id" : 3 , "name" : "", "status":"paid","amount":0.10,"qty":0,"tags":null,'
    '"address":null,"ok":null}'
)
EVE = (
    '{"qty":7,"id":4,"email":"x","name":"Eve","status":null,"amount":null,"tags":["€"],'
    '"address":{"city":null},"ok":true,"extra":{"deep":{"er":[1,{"a":1.0}]}}}'
)
LONG_ID = (
    '{"id":9007199254740993123,"email":"a@b","name":"\\u00e9\\ud83d\\ude00","status":"x","qty":1}'
)
LINES = [text.encode() for text in (ADA, BOB, NULLS, EVE, "{}", LONG_ID)]
CONFIG = {"seed": "s1", "limits": {"low": 1}, "names": ["Ada", "Eve"]}


def prop(**rules: Any) -> dict[str, Any]:
    """Return a stream map of `orders`."""
    return {"stream_maps": {"orders": rules}, "stream_map_config": CONFIG}


def condition(text: str) -> dict[str, Any]:
    """Return a stream map with a filter only."""
    return prop(__filter__=text)


def flat(depth: int, **rules: Any) -> dict[str, Any]:
    """Return flattening options, with a stream map if there are rules."""
    config = prop(**rules) if rules else {}
    return {**config, "flattening_enabled": True, "flattening_max_depth": depth}


MAPS = {
    "no option": {},
    "no rule": prop(),
    "remove": prop(email=None),
    "remove as text": prop(email="__NULL__"),
    "rename": prop(mail="email", email=None),
    "rename from a removed one": prop(email=None, mail="email"),
    "swap": prop(name="status", status="name"),
    "copy through record": prop(a="record['name']", b="_['qty']", c="record.status"),
    "constant": prop(source="'erp'", number="42", nothing="None", yes="True", pi="3.25"),
    "keep only as text": prop(id="self", __else__="__NULL__"),
    "keep nothing": prop(__else__=None),
    "hash": prop(email="md5(config['seed'] + email) if email else None"),
    "default for null": prop(email="self or 'x'"),
    "self": prop(email="self.lower() if self else self"),
    "arithmetic with decimals": prop(a="amount * 2", b="amount + qty", c="-amount"),
    "float": prop(a="float(amount) * 1.1", b="float(name)"),
    "str": prop(a="str(amount)", b="str(tags)", c="str(None)", d="str(ok)"),
    "comparison": prop(a="qty > 1", b="0 < qty <= 2", c="status == 'paid'", d="id != 1"),
    "nested": prop(a="address['city']", b="address.city", c="address.geo.lat"),
    "whole record": prop(all="record"),
    "methods of record": prop(
        a="record.get('na' + 'me')",
        keys="list(record.keys())",
        values="[str(v) for v in _.values()]",
    ),
    "lists": prop(a="[id, name]", b="(id, name)", c="list(tags)", d="{'a': qty, 'b': [name]}"),
    "dict comprehension": prop(a="{t: id for t in tags}", b="dict(x=id)"),
    "f-string": prop(a="f'{name}/{id:05d}'", b="f'{amount}'"),
    "stream name": prop(__alias__="sales", a="__stream_name__", b="__original_stream_name__"),
    "dates": prop(
        a="datetime.date.fromisoformat('2026-01-31')",
        b="datetime.datetime(2026, 1, 31, 12, 30)",
        c="datetime.datetime.fromisoformat('2026-01-31T00:00:00+00:00')",
        d="datetime.timedelta(days=1, seconds=qty)",
        e="datetime.date.fromisoformat('2026-01-31').strftime('%Y')",
    ),
    "json": prop(a="json.dumps(tags)", b="json.loads('[1, 2.5]')", c="json.dumps(amount)"),
    "not finite": prop(a="float('nan')", b="float('inf')"),
    "bytes": prop(a="name.encode()", b="name.encode().hex()"),
    "odd keys": prop(a="{1: 2, None: 3, True: 4, 2.5: 5}"),
    "unknown name": prop(a="nowhere"),
    "missing property": prop(a="extra", b="extra['deep']"),
    "change a list": prop(a="tags.append('z')"),
    "change the record": prop(a="record.pop('name')", b="record.update({'c': 1})"),
    "sort a list": prop(a="[tags.reverse(), 1][1]", tags2="tags"),
    "filter": condition("status == 'paid'"),
    "filter none": condition("1"),
    "filter that fails": condition("amount > 1.5"),
    "filter on a hidden one": prop(__filter__="email", email=None),
    "filter and change": prop(__filter__="record.update({'new': 1}) is None", a="new"),
    "alias": prop(__alias__="sales"),
    "alias computed": prop(__alias__="'x_' + __stream_name__"),
    "wildcard": {"stream_maps": {"ord*": {"email": None, "s": "__stream_name__"}}},
    "wildcard with itself as alias": {"stream_maps": {"*": {"__alias__": "'*'"}}},
    "last wildcard": {"stream_maps": {"orders": {"name": None}, "*": {"email": None}}},
    "else of streams": {"stream_maps": {"orders": {"email": None}, "__else__": None}},
    "copy of another": {"stream_maps": {"copy": {"__source__": "customers", "a": "b"}}},
    "flatten 0": flat(0),
    "flatten 1": flat(1),
    "flatten 2": flat(2),
    "flatten and remove": flat(1, address=None),
    "flatten a copy": flat(1, place="address"),
    "flatten a moved one": flat(1, place="address", address=None),
    "flatten one moved after": flat(1, address=None, place="address"),
    "flatten over": flat(1, tags="address", address="tags"),
    "flatten over an object": flat(1, address="{'a': {'b': qty}}"),
    "flatten new objects": flat(2, a="{'b': qty}", c="(1, 2)", d="[1, 2]"),
    "flatten the record": flat(1, all="record"),
    "flatten what is kept": flat(1, id="id", place="address", address="dict(a=1)", __else__=None),
    "flatten a chain": flat(1, a="address", b="a"),
    "flatten a text": flat(1, address="str(address)", extra="json.dumps(tags)"),
    "flatten a long name": flat(2, **{"long_name_of_a_column_" * 12: "address"}),
    "flatten and filter": flat(1, __filter__="address"),
}
