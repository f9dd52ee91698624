"""Where an endpoint is: the forms that are read, and the ones that are refused."""

import pytest

from mhsd.client.endpoint import BadEndpoint, HttpEndpoint, StdioEndpoint, parse_endpoint
from mhsd.client.errors import AuthError


@pytest.mark.parametrize(
    ("text", "url", "path"),
    [
        ("http://127.0.0.1:7400", "http://127.0.0.1:7400", "/mhs/v1/rpc"),
        ("http://127.0.0.1:7400/", "http://127.0.0.1:7400", "/mhs/v1/rpc"),
        ("http://127.0.0.1:7400/mhs/v1/rpc", "http://127.0.0.1:7400", "/mhs/v1/rpc"),
        ("http://localhost", "http://localhost:80", "/mhs/v1/rpc"),
        ("https://bench.example", "https://bench.example:443", "/mhs/v1/rpc"),
        ("https://bench.example/cell/", "https://bench.example:443/cell", "/cell/mhs/v1/rpc"),
        ("http://[::1]:7400", "http://[::1]:7400", "/mhs/v1/rpc"),
        ("mhs://localhost", "http://localhost:7400", "/mhs/v1/rpc"),
        ("mhs://bench.example", "https://bench.example:7400", "/mhs/v1/rpc"),
    ],
)
def test_an_http_endpoint_is_read(text: str, url: str, path: str) -> None:
    endpoint = parse_endpoint(text)
    assert isinstance(endpoint, HttpEndpoint)
    assert (endpoint.url, endpoint.rpc_path) == (url, path)


def test_a_stdio_endpoint_keeps_quoted_words_together() -> None:
    endpoint = parse_endpoint("stdio:mhsd --stdio 'my driver'")
    assert endpoint == StdioEndpoint(("mhsd", "--stdio", "my driver"))
    assert endpoint.url == "stdio:mhsd --stdio 'my driver'"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bench:7400",
        "ftp://bench",
        "ws://127.0.0.1:7400",
        "http://",
        "http://h:notaport",
        "http://h:99999",
        "stdio:",
        "stdio:'open",
        "http://token@127.0.0.1:7400",
        "http://127.0.0.1:7400?token=x",
        "http://127.0.0.1:7400#x",
        "http://[::1",
    ],
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(BadEndpoint):
        parse_endpoint(text)


@pytest.mark.parametrize("host", ["10.0.0.5", "bench.example", "0.0.0.0", "192.168.1.1", "[fe80::1]"])
def test_plain_http_to_another_machine_is_refused(host: str) -> None:
    endpoint = parse_endpoint(f"http://{host}:7400")
    assert isinstance(endpoint, HttpEndpoint)
    with pytest.raises(AuthError) as refused:
        endpoint.refuse_insecure()
    assert refused.value.mhs_code == "MHS.AUTH.TRANSPORT_INSECURE"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST.", "[::1]"])
def test_plain_http_within_this_machine_is_allowed(host: str) -> None:
    endpoint = parse_endpoint(f"http://{host}:7400")
    assert isinstance(endpoint, HttpEndpoint)
    endpoint.refuse_insecure()
