"""Which requests the proxy of a service refuses: the rules of `nginx.conf`, applied without nginx.

Its maps are read here as nginx reads them: the first pattern that fits, else the default. That
nginx takes them so was tried by hand, as `operating/production.md` tells.
"""

import re
from importlib import resources

import pytest

CONF = (resources.files("batch_pipeline") / "deploy/nginx.conf").read_text(encoding="utf-8")
HOST = {"host": "dagster.example.org"}
JSON = {"content-type": "application/json"}
OWN = {"origin": "https://dagster.example.org"}
OTHER = {"origin": "https://evil.example.org"}
PAGE = {"accept": "text/html,*/*"}
SOCKET = {"upgrade": "websocket"}


def told(variable: str, values: dict[str, str]) -> str:
    """Give what a map of the configuration makes of the variables of a request."""
    [(key, body)] = re.findall(
        rf'^    map "([^"]+)" \${variable} {{\n(.*?)^    }}', CONF, re.M | re.S
    )
    seen = re.sub(r"\$(\w+)", lambda name: values.get(name[1], ""), key)
    [otherwise] = re.findall(r"^ +default +(\d);", body, re.M)
    for tilde, pattern, value in re.findall(r'^ +"(~\*?)(.+)" +(\d);$', body, re.M):
        if re.search(pattern, seen, re.I if tilde == "~*" else 0):
            return str(value)
    return str(otherwise)


def refused_by(method: str, path: str, headers: dict[str, str]) -> list[str]:
    """Name the rules that refuse a request."""
    values = {f"http_{name}": value for name, value in headers.items()}
    values |= {"uri": path, "request_method": method}
    values["content_type"] = headers.get("content-type", "")
    rules = re.findall(r"if \(\$(\w+)\) {\n +return 403 ", CONF)
    assert rules == ["is_page_of_another", "is_link_or_form"]
    return [rule for rule in rules if told(rule, values) == "1"]


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        pytest.param("POST", "/graphql", JSON, id="program"),
        pytest.param("POST", "/graphql", JSON | OWN, id="own page"),
        pytest.param("GET", "/graphql", OWN | SOCKET, id="own websocket"),
        pytest.param("GET", "/graphql", PAGE, id="page of questions"),
        pytest.param("GET", "/runs/1", PAGE, id="link from elsewhere"),
        pytest.param("GET", "/server_info", {}, id="health check"),
        pytest.param(
            "POST",
            "/graphql",
            JSON | {"host": "d.example.org:8443", "origin": "https://d.example.org:8443"},
            id="own port",
        ),
    ],
)
def test_request_of_its_own_passes_the_proxy(
    method: str, path: str, headers: dict[str, str]
) -> None:
    """Expect no rule to refuse it."""
    assert refused_by(method, path, HOST | headers) == []


@pytest.mark.parametrize(
    ("method", "path", "headers", "rule"),
    [
        pytest.param("POST", "/graphql", JSON | OTHER, "page_of_another", id="JSON of another"),
        pytest.param("POST", "/graphql", JSON | {"origin": "null"}, "page_of_another", id="nobody"),
        pytest.param("GET", "/graphql", OTHER | SOCKET, "page_of_another", id="their websocket"),
        pytest.param("POST", "/report_asset_check/x", OTHER, "page_of_another", id="their report"),
        pytest.param(
            "POST",
            "/graphql",
            JSON | {"origin": "https://dagster.example.org.evil.org"},
            "page_of_another",
            id="name alike",
        ),
        pytest.param(
            "POST",
            "/graphql",
            JSON | {"origin": "http://dagster.example.org"},
            "page_of_another",
            id="without TLS",
        ),
        pytest.param(
            "POST", "/graphql", {"content-type": "text/plain"}, "link_or_form", id="plain text"
        ),
        pytest.param("POST", "/graphql/", {}, "link_or_form", id="query in the URL"),
        pytest.param("GET", "/graphql", {"accept": "image/*"}, "link_or_form", id="image"),
        pytest.param("GET", "/graphql", JSON, "link_or_form", id="a read that says JSON"),
        pytest.param("HEAD", "/graphql", {}, "link_or_form", id="head"),
    ],
)
def test_request_that_another_page_may_have_caused_is_refused_by_the_proxy(
    method: str, path: str, headers: dict[str, str], rule: str
) -> None:
    """Expect the rule that is meant for it, and no other, to refuse it."""
    assert refused_by(method, path, HOST | headers) == [f"is_{rule}"]
