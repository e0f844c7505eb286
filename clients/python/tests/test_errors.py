"""What the client says when something is wrong, against real sockets of this machine: each message names the remedy."""

import json
import ssl
import subprocess
import sys
import time

import httpx
import pytest

import cloche
from cloche import Cloche
from cloche._connection import find_connection
from cloche._request import Request

from .local_service import DONE, alone, sandbox_json, server

assert alone  # A fixture of every test.


def certificate(folder, name, days=1):
    """A self-signed certificate for `name`; days below 0: one that has expired."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    request, more = folder / "request.pem", folder / "extensions"
    more.write_text(f"subjectAltName=DNS:{name}\nbasicConstraints=CA:TRUE\n")
    for words in (
        ["req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-subj", "/CN=x", "-out", request],
        ["x509", "-req", "-in", request, "-signkey", key, "-days", str(days), "-extfile", more, "-out", cert],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert


def test_no_service_and_no_key():
    with pytest.raises(cloche.ClocheConfigError, match="npm start.*CLOCHE_URL and CLOCHE_API_KEY"):
        Cloche()
    with pytest.raises(cloche.ClocheConfigError, match="set CLOCHE_API_KEY"):
        Cloche("http://127.0.0.1:1")
    with pytest.raises(cloche.ClocheConfigError, match="url is 'localhost:7080'.*http://127.0.0.1:7080"):
        Cloche("localhost:7080", "k")
    with pytest.raises(cloche.ClocheConfigError, match="CLOCHE_CA_CERT: cannot read .*/nope"):
        Cloche("http://127.0.0.1:1", "k", ca_cert="/nope")


def test_gateway_not_there():
    with Cloche("http://127.0.0.1:1", "k") as client, pytest.raises(
        cloche.ClocheConnectionError, match="no answer from 127.0.0.1:1: .*refused; start the service .*CLOCHE_URL"
    ):
        client.get("sbx-a")


def test_http_where_https_was_meant():
    with server() as plain, Cloche(f"https://127.0.0.1:{plain.port}", "k") as client, pytest.raises(
        cloche.ClocheConnectionError, match="begins with http://"
    ):
        client.get("sbx-a")


def test_something_else_answers():
    with server(lambda _: (200, b"<html>")) as web, Cloche(f"http://127.0.0.1:{web.port}", "k") as client, pytest.raises(
        cloche.ClocheError, match="is no JSON; is it a Cloche service"
    ):
        client.get("sbx-a")


def test_wrong_key():
    def refuse(_):
        return 401, b'{"code":"unauthenticated","message":"the API key is unknown"}'

    with server(refuse) as gateway, Cloche(f"http://127.0.0.1:{gateway.port}", "k") as client, pytest.raises(
        cloche.UnauthenticatedError, match="the API key is unknown; the key came from api_key"
    ) as caught:
        client.get("sbx-a")
    assert (caught.value.status, caught.value.request_id) == (401, "r-1")


def test_local_names_by_sni_and_host_and_only_the_given_ca(tmp_path):
    context, cert = certificate(tmp_path, "*.cloche.localhost")
    names = []
    context.sni_callback = lambda _, name, __: names.append(name)
    with server(lambda _: (200, DONE), tls=context) as edge:
        domain = f"sbx-a.cloche.localhost:{edge.port}"
        with server(lambda _: (200, sandbox_json(domain).encode())) as gateway:
            url = f"http://127.0.0.1:{gateway.port}"
            with Cloche(url, "k", ca_cert=str(cert)) as client:
                assert client.create().exec(["true"]).ok
            assert names == ["sbx-a.cloche.localhost"]
            assert edge.seen == [("/v1/exec", domain, "Bearer jwt")]
            with Cloche(url, "k") as client, pytest.raises(
                cloche.ClocheCertificateError, match=r"is not trusted: self.signed.*set CLOCHE_CA_CERT"
            ):
                client.create().exec(["true"])


def test_the_plain_address_on_the_loopback_needs_no_ca(monkeypatch, tmp_path):
    context, cert = certificate(tmp_path, "*.cloche.localhost")
    with server(lambda _: (200, DONE)) as plain, server(lambda _: (200, DONE), tls=context) as edge:
        domain = f"sbx-a.cloche.localhost:{edge.port}"
        told = sandbox_json(domain, f"http://127.0.0.1:{plain.port}").encode()
        with server(lambda _: (200, told)) as gateway:
            url = f"http://localhost:{gateway.port}"
            with Cloche(url, "k") as client:
                assert client.create().exec(["true"]).ok
            assert [path for path, _, _ in plain.seen] == ["/sandboxes/sbx-a/v1/exec"] and edge.seen == []
            monkeypatch.setenv("CLOCHE_EDGE_URL", f"https://127.0.0.1:{edge.port}")
            with Cloche(url, "k", ca_cert=str(cert)) as client:
                assert client.create().exec(["true"]).ok
            assert (len(plain.seen), edge.seen) == (1, [("/v1/exec", domain, "Bearer jwt")])


@pytest.mark.parametrize(
    ("gateway", "plain", "used"),
    [
        ("http://127.0.0.1:7080", "http://127.0.0.1:7081", True),
        ("http://[::1]:7080", "http://localhost:7081", True),
        # Its loopback is not ours.
        ("https://gateway.example", "http://127.0.0.1:7081", False),
        ("http://127.0.0.1.example:7080", "http://127.0.0.1:7081", False),
        # Nothing goes without TLS to another machine.
        ("http://127.0.0.1:7080", "http://10.0.0.1:7081", False),
        ("http://127.0.0.1:7080", "http://127.0.0.1.example", False),
        ("http://127.0.0.1:7080", "", False),
    ],
)
def test_what_counts_as_the_loopback(gateway, plain, used):
    assert find_connection(url=gateway, api_key="k").plain_address(plain) is used


def test_certificate_that_expired_or_is_of_another_name(tmp_path):
    for name, days, words in (("*.cloche.localhost", -1, "set this machine's clock"), ("other.example", 1, "of another name")):
        context, cert = certificate(tmp_path, name, days)
        with server(tls=context) as edge, server(
            lambda _, port=edge.port: (200, sandbox_json(f"sbx-a.cloche.localhost:{port}").encode())
        ) as gateway, Cloche(f"http://127.0.0.1:{gateway.port}", "k", ca_cert=str(cert)) as client, pytest.raises(
            cloche.ClocheCertificateError, match=words
        ):
            client.create().exec(["true"])


def test_public_authorities_are_kept(tmp_path):
    from cloche._tls import tls_context

    _, cert = certificate(tmp_path, "x.example")
    public = len(tls_context(find_connection(url="http://127.0.0.1:1", api_key="k")).get_ca_certs())
    both = len(tls_context(find_connection(url="http://127.0.0.1:1", api_key="k", ca_cert=str(cert))).get_ca_certs())
    assert public > 50 and both == public + 1


@pytest.mark.parametrize(("seconds", "words"), [(-3600, "36.. s ahead of"), (3600, "3[56].. s behind")])
def test_clock_that_is_wrong(tmp_path, seconds, words):
    context, cert = certificate(tmp_path, "*.cloche.localhost")

    def refuse(_):
        return 401, b'{"code":"unauthenticated","message":"the token has expired"}'

    with server(refuse, tls=context) as edge:
        token = json.dumps({"jwt": "j", "expires_at_unix": int(time.time() + seconds + 3600)})

        def answer(request):
            domain = f"sbx-a.cloche.localhost:{edge.port}"
            return 200, (token if "IssueDataPlaneToken" in request.path else sandbox_json(domain)).encode()

        with server(answer, clock_seconds=seconds) as gateway, Cloche(
            f"http://127.0.0.1:{gateway.port}", "k", ca_cert=str(cert)
        ) as client:
            with pytest.raises(cloche.UnauthenticatedError, match=f"clock is {words} the service's: set it"):
                client.create().exec(["true"])


def test_tokens_are_renewed_by_the_clock_of_the_service():
    """Whatever the clock here says, a token of an hour is asked for once; one that is about to expire again and again."""
    for seconds in (-86_400, 0, 86_400):
        for lifetime, wanted in ((3600, 1), (20, 3)):
            now = time.time() + seconds
            token = json.dumps({"jwt": "j", "expires_at_unix": int(now + lifetime)}).encode()
            info = sandbox_json("sbx-a.cloche.localhost").encode()
            with server(
                lambda request, token=token, info=info: (200, token if "Issue" in request.path else info), clock_seconds=seconds
            ) as gateway, Cloche(f"http://127.0.0.1:{gateway.port}", "k") as client:
                sandbox = client.get("sbx-a")
                assert [sandbox.token() for _ in range(3)] == ["j"] * 3
                issued = [path for path, _, _ in gateway.seen if path.endswith("/IssueDataPlaneToken")]
                assert len(issued) == wanted, (seconds, lifetime)


def test_arguments_that_no_service_could_take():
    with Cloche("http://127.0.0.1:1", "k") as client:
        with pytest.raises(cloche.ClocheUsageError, match="no field 'nmae'; it takes .*name"):
            client.create(nmae="x")
        sandbox = cloche.Sandbox(client.gateway, client._transport, client._clock, None)
        with pytest.raises(ValueError, match=r'use \["sh", "-c", line\]'):
            sandbox.exec("ls -l")
        for key in ("", ".", ".."):
            with pytest.raises(cloche.ClocheUsageError, match="key .* is not allowed"):
                sandbox.store.get(key)
        with pytest.raises(cloche.ClocheUsageError, match="not JSON"):
            sandbox.store.set("a", float("nan"))


@pytest.mark.parametrize("length", [1, 2])
def test_causes_in_a_circle(length):
    """In a process of its own, which a walk without end would not leave."""
    program = f"""
import httpx
from cloche._failures import no_answer
errors = [httpx.ReadError("") for _ in range({length})]
for error, cause in zip(errors, errors[1:] + errors[:1]):
    error.__cause__ = cause
print(no_answer(errors[0], "host", gateway=False))
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert "no answer from host: ; the connection was lost" in told.stdout, told.stderr


@pytest.mark.parametrize("failure", [OSError("no more"), httpx.ReadError("no more"), ValueError("no more")])
def test_an_iterator_that_fails_is_no_lost_connection(failure):
    def pieces():
        yield b"part"
        raise failure

    with server() as web, Cloche(f"http://127.0.0.1:{web.port}", "k") as client, pytest.raises(type(failure)) as caught:
        client._transport.send(Request("POST", f"http://127.0.0.1:{web.port}/", body=pieces()))
    assert caught.value is failure
    with Cloche("http://127.0.0.1:1", "k") as client, pytest.raises(cloche.ClocheConnectionError, match="refused"):
        client._transport.send(Request("POST", "http://127.0.0.1:1/", body=pieces()))


def test_python_too_old(tmp_path):
    """The version check stands before everything that an older Python cannot read."""
    program = "import sys; sys.version_info = (3, 8, 18, 'final', 0); import cloche"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stderr.strip().splitlines()[-1] == (
        "ImportError: cloche needs Python 3.9 or newer, and this is Python 3.8: run it with a newer python3"
    )
