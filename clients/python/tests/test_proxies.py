"""The proxies that the environment names: what goes through one, and that nothing of this machine does."""

import sys

import pytest

import cloche
from cloche import Cloche
from cloche._proxy import Proxies, is_loopback

from .local_service import alone, sandbox_json, server

assert alone  # A fixture of every test.

PROXY = "http://proxy.example:3128"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("no_proxy", "host", "direct"),
    [
        ("", "gateway.example", False),
        ("*", "gateway.example", True),
        ("gateway.example", "gateway.example", True),
        ("Gateway.Example", "gateway.example", True),
        ("example", "gateway.example", True),
        (".example", "gateway.example", True),
        ("*.example", "gateway.example", True),
        ("https://gateway.example", "gateway.example", True),
        ("way.example", "gateway.example", False),
        ("gateway.example:443", "gateway.example", True),
        ("gateway.example:8443", "gateway.example", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3:443", "10.1.2.3", True),
        ("10.1.2.3:80", "10.1.2.3", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.1.2.9/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("2.3", "10.1.2.3", False),
        ("fd00::7", "fd00::7", True),
        ("fd00:0:0::7", "fd00::7", True),
        ("[fd00::7]", "fd00::7", True),
        ("[fd00::7]:443", "fd00::7", True),
        ("[fd00::7]:80", "fd00::7", False),
        ("fd00::/8", "fd00::7", True),
        ("[fd00::]/8", "fd00::7", True),
        ("fe80::/10", "fd00::7", False),
        ("a.example, fd00::/8 b.example,,", "fd00::7", True),
        ("nonsense/99,[,],:", "gateway.example", False),
    ],
)
def test_no_proxy(no_proxy, host, direct):
    found = Proxies({"https": PROXY, "no": no_proxy}).of("https", host, 443)
    assert found == (None if direct else PROXY)


def test_which_proxy():
    proxies = Proxies({"http": "proxy.example:1", "all": "socks5://proxy.example:2"})
    assert proxies.of("http", "gateway.example", 80) == "http://proxy.example:1"
    assert proxies.of("https", "gateway.example", 443) == "socks5://proxy.example:2"
    assert Proxies({}).of("http", "gateway.example", 80) is None


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1"])
def test_the_loopback_is_direct(host):
    assert is_loopback(host) and Proxies({"all": PROXY}).of("http", host, 80) is None


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9", "socks9://nonsense"])
@pytest.mark.parametrize("no_proxy", ["", "::1", "[::1]", "fd00::/8,10.0.0.0/8"])
def test_a_service_of_this_machine_is_reached_whatever_the_environment_says(monkeypatch, proxy, no_proxy):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    with server(lambda _: (200, sandbox_json("").encode())) as gateway:
        for host in ("127.0.0.1", "localhost"):
            with Cloche(f"http://{host}:{gateway.port}", "k") as client:
                assert client.get("sbx-a").id == "sbx-a"


def test_another_machine_is_reached_through_the_proxy(monkeypatch):
    with server(lambda _: (200, sandbox_json("").encode())) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "fd00::/8")
        with Cloche("http://gateway.example:7080", "k") as client:
            assert client.get("sbx-a").id == "sbx-a"
        assert [host for _, host, _ in proxy.seen] == ["gateway.example:7080"]


def test_a_socks_proxy_works_or_says_what_it_needs(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "socksio", None)
    with Cloche("http://gateway.example", "k") as client, pytest.raises(
        cloche.ClocheConfigError, match=r"pip install 'httpx\[socks\]'"
    ):
        client.get("sbx-a")
    monkeypatch.setenv("ALL_PROXY", "socks9://127.0.0.1:9")
    with Cloche("http://gateway.example", "k") as client, pytest.raises(
        cloche.ClocheConfigError, match="cannot be used.*socks9.*socks5"
    ):
        client.get("sbx-a")
