"""Runs the cases of spec/cases through the client against a real service.

A step goes through the method that a program would use; what no method can send goes as a plain request over the client's own
connections, so that TLS, names, tokens and errors are its own in every step. What the service answered and what the client made
of it are both held against what the case expects.
"""

import base64
import contextvars
import dataclasses
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, quote, urlsplit

from cloche import AsyncCloche, Cloche, ClocheAPIError, ClocheUsageError, NotFoundError
from cloche._request import Request

from .bridge import Bridge, Loop
from .calls import NoMethod, data_plane_call, gateway_call
from .matchers import ABSENT, mismatches

PUBLIC_SERVICE = "cloche.public.v1.SandboxService"
POLL_SECONDS = 0.1
GATEWAY_STATUSES = {
    "canceled": 499,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
DATA_PLANE_STATUSES = {**GATEWAY_STATUSES, "deadline_exceeded": 408, "failed_precondition": 409}
_seen = contextvars.ContextVar("seen")


class CaseFailure(AssertionError):
    pass


class Exchange:
    def __init__(self, response, body, value, error):
        self.response, self.body, self.value, self.error = response, body, value, error
        try:
            self.json = json.loads(body)
        except ValueError:
            self.json = ABSENT


class Session:
    """`flavour`: `sync` or `async`. Owns the sandboxes that it made; `close` deletes those that are left."""

    def __init__(self, flavour, target):
        self.flavour = flavour
        self.target = target
        self._loop = Loop() if flavour == "async" else None
        self.client = self._client(target["apiKey"])
        self.other = self._client(target["otherTeamKey"])
        self._sandboxes = {}
        self._owned = {}
        self._count = 0
        self.methods = self.plain = 0

    def _client(self, api_key):
        client = Bridge(self._loop, AsyncCloche(api_key=api_key)) if self._loop else Cloche(api_key=api_key)
        client._transport.watch = lambda response: _seen.get([]).append(response)
        return client

    def close(self):
        for id in list(self._owned):
            self.discard(id)
        self.client.close()
        self.other.close()
        if self._loop is not None:
            self._loop.close()

    def create(self, fields):
        sandbox = self.client.create(**(fields or {}))
        self._owned[sandbox.id] = self.client
        sandbox.wait_for("SANDBOX_STATE_RUNNING")
        self._sandboxes[sandbox.id] = sandbox
        return sandbox

    def discard(self, id):
        client = self._owned.pop(id)
        try:
            client.gateway.delete_sandbox(id)
        except NotFoundError:
            pass

    def run(self, file, case, shared):
        own = self.create(case.get("create", file.get("create"))) if sandbox_use(file, case) == "each" else None
        sandbox = own or shared
        self._count += 1
        captured = {
            "case": f"c{time.time_ns():x}{self._count}",
            "api_key": self.target["apiKey"],
            "key512": "k" * 512,
        }
        if sandbox is not None:
            captured.update(sandbox=sandbox.id, domain=sandbox.domain, token=sandbox.token())
            captured["base_domain"] = sandbox.domain[len(sandbox.id) + 1 :]
        before = set(self._owned) - ({own.id} if own else set())
        transcript = []
        try:
            with ThreadPoolExecutor() as meanwhile:
                later = []
                for step in case["steps"]:
                    if step.get("meanwhile"):
                        later.append(meanwhile.submit(self._step, file, step, captured, transcript))
                    else:
                        self._step(file, step, captured, transcript)
                for one in later:
                    one.result()
        finally:
            for id in set(self._owned) - before:
                self.discard(id)

    def _step(self, file, raw, captured, transcript):
        step = fill({key: value for key, value in raw.items() if key != "capture"}, captured)
        time.sleep(step.get("pause_ms", 0) / 1000)
        surface = step.get("surface", "dataplane" if " " in step["call"] else file["surface"])
        until = time.monotonic() + step.get("until_ms", 0) / 1000 * self.target.get("patience", 1)
        while True:
            copies = step.get("copies", 1)
            if copies == 1:
                exchanges = [self._exchange(surface, step, captured)]
            else:
                with ThreadPoolExecutor(copies) as pool:
                    exchanges = list(pool.map(lambda _: self._exchange(surface, step, captured), range(copies)))
            problems = [(one, found) for one in exchanges if (found := problems_of(surface, step, one))]
            if not problems:
                break
            if time.monotonic() >= until:
                exchange, found = problems[0]
                wrong = "\n".join(f"  - {line}" for line in found)
                told = "\n".join(transcript) or "(the first step)"
                raise CaseFailure(f"{described(step, exchange)}\n{wrong}\nbefore it:\n{told}")
            time.sleep(POLL_SECONDS)
        transcript.append(described(step, exchanges[0]))
        if step["call"] in ("CreateSandbox", "ForkSandbox"):
            for one in exchanges:
                self._await_made(one)
        for name, place in raw.get("capture", {}).items():
            place, _, parameter = place.partition("?")
            value = pick(exchanges[0], place)
            # `json.url?token`: a parameter of a URL.
            captured[name] = parse_qs(urlsplit(value).query)[parameter][0] if parameter else value

    def _exchange(self, surface, step, captured):
        seen = []
        _seen.set(seen)
        value = error = None
        body = body_of(step)
        try:
            value = self._send(surface, step, captured, body)
        except ClocheAPIError as refused:
            error = refused
        response = seen[-1]
        content = value if isinstance(value, bytes) else getattr(response, "_content", b"")
        exchange = Exchange(response, content, value, error)
        if surface == "gateway" and step["call"] in ("CreateSandbox", "ForkSandbox") and error is None:
            for made in exchange.json.get("sandboxes", [exchange.json["sandbox"]]):
                self._owned[made["id"]] = self.other if step.get("auth") == "other_team" else self.client
        return exchange

    def _send(self, surface, step, captured, body):
        auth = step.get("auth", "api_key" if surface == "gateway" else "token")
        try:
            if surface == "gateway" and auth in ("api_key", "other_team") and not set(step) & {"path", "method", "headers", "query", "text"}:
                client = self.other if auth == "other_team" else self.client
                value = gateway_call(client.gateway, step["call"], step.get("json", {}))
                self.methods += 1
                return value
            if surface == "dataplane" and auth == "token" and "." not in step.get("on", ""):
                method, _, path = step["call"].partition(" ")
                sandbox = self._sandbox(step.get("on", captured.get("sandbox")))
                if "?" in path:
                    raise NoMethod
                query, headers = step.get("query", {}), step.get("headers", {})
                text = None if step.get("json") is not None else body
                value = data_plane_call(sandbox, method, path, query, step.get("json"), text, headers)
                self.methods += 1
                return value
        except (NoMethod, ClocheUsageError):
            pass
        self.plain += 1
        return self._send_plain(surface, step, captured, body, auth)

    def _send_plain(self, surface, step, captured, body, auth):
        query = "&".join(f"{quote(key, safe='')}={quote(text_of(one), safe='')}" for key, one in step.get("query", {}).items())
        if surface == "gateway":
            method, path = step.get("method", "POST"), step.get("path", f"/{PUBLIC_SERVICE}/{step['call']}")
            base = self.target["gatewayUrl"]
        else:
            method, _, path = step["call"].partition(" ")
            on = step.get("on", captured.get("sandbox"))
            base = f"https://{on if '.' in on else self._domain(on, captured)}"
        path = f"{path}?{query}" if query else path
        headers = {**({"content-type": "application/json"} if "json" in step else {}), **step.get("headers", {})}
        headers.update(self._authorization(auth, step, captured))
        request = Request(method, f"{base}/", headers, body, target=path.encode())
        response = self.client._transport.send(request)
        return self.client._transport.read(response)

    def _authorization(self, auth, step, captured):
        kind, _, argument = auth.partition(" ")
        if kind == "none":
            return {}
        if kind == "basic":
            return {"authorization": "Basic " + base64.b64encode(f"key:{self.target['apiKey']}".encode()).decode()}
        if kind == "bearer":
            return {"authorization": f"Bearer {argument}"}
        keys = {"api_key": self.target["apiKey"], "other_team": self.target["otherTeamKey"]}
        id = argument if kind == "token_of" else step.get("on", captured.get("sandbox"))
        return {"authorization": f"Bearer {keys.get(kind) or self._sandbox(id).token()}"}

    def _sandbox(self, id):
        if id not in self._sandboxes:
            self._sandboxes[id] = self.client.get(id)
        return self._sandboxes[id]

    def _domain(self, id, captured):
        return captured["domain"] if id == captured.get("sandbox") else self._sandbox(id).domain

    def _await_made(self, exchange):
        if exchange.error is not None:
            return
        for made in (exchange.json["sandbox"], *exchange.json.get("sandboxes", [])):
            if made.get("state") == "SANDBOX_STATE_CREATING":
                info = self._sandbox(made["id"]).wait_for("SANDBOX_STATE_RUNNING", "SANDBOX_STATE_ERROR")
                made.update(state=info.state, domain=info.domain)


def sandbox_use(file, case):
    return case.get("sandbox", file.get("sandbox", "shared"))


def problems_of(surface, step, exchange):
    """What is wrong with the answer, and with what the client made of it."""
    expect, response, error = step["expect"], exchange.response, exchange.error
    code = expect.get("error")
    statuses = GATEWAY_STATUSES if surface == "gateway" else DATA_PLANE_STATUSES
    status = expect.get("status", statuses[code] if code else None)
    found = []
    if status is not None and response.status_code not in (status if isinstance(status, list) else [status]):
        found.append(f"status: expected {status}, got {response.status_code}")
    if (response.status_code >= 300) != (error is not None):
        found.append(f"the client raised {error!r} at status {response.status_code}")
    if error is not None and (error.status, error.request_id) != (response.status_code, response.headers.get("x-request-id")):
        found.append(f"the error has status {error.status} and request id {error.request_id}")
    if code is not None:
        found += mismatches(code, getattr(error, "code", ABSENT), "error.code")
        says = expect.get("says", [])
        for part in [says] if isinstance(says, str) else says:
            found += mismatches({"$includes": part}, str(error), "error.message")
    for name, wanted in expect.get("headers", {}).items():
        found += mismatches(wanted, response.headers.get(name, ABSENT), f"headers.{name}")
    if "json" in expect:
        found += mismatches(expect["json"], exchange.json)
        found += mismatches(expect["json"], as_the_client_has_it(exchange), "client's json")
    if "text" in expect:
        found += mismatches(expect["text"], exchange.body.decode("utf-8", "replace"), "text")
    if "size" in expect and len(exchange.body) != expect["size"]:
        found.append(f"size: expected {expect['size']} bytes, got {len(exchange.body)}")
    return found


def as_the_client_has_it(exchange):
    """The JSON with each field as the client answers it; as it came where the client's method answers another thing."""
    value = exchange.value
    if isinstance(value, list) and isinstance(exchange.json, dict) and len(exchange.json) == 1:
        (name,) = exchange.json
        return {name: [_merged(one, raw) for one, raw in zip(value, exchange.json[name])]}
    if dataclasses.is_dataclass(value) and isinstance(exchange.json, dict):
        raw = exchange.json
        return {**raw, "sandbox": _merged(value, raw["sandbox"])} if set(raw) == {"sandbox"} else _merged(value, raw)
    return exchange.json


def _merged(value, raw):
    if dataclasses.is_dataclass(value) and isinstance(raw, dict):
        ours = {field.name.rstrip("_"): getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _merged(ours[name], one) if name in ours else one for name, one in raw.items()}
    if isinstance(value, list) and isinstance(raw, list) and len(value) == len(raw):
        return [_merged(one, came) for one, came in zip(value, raw)]
    return value


def fill(value, captured):
    """Fills `${name}` in every string; a string that is only `${name}` becomes what was captured, type and all."""
    if isinstance(value, str):
        whole = re.fullmatch(r"\$\{(\w+)\}", value)
        if whole:
            return captured[whole[1]]
        return re.sub(r"\$\{(\w+)\}", lambda found: str(captured[found[1]]), value)
    if isinstance(value, list):
        return [fill(one, captured) for one in value]
    if isinstance(value, dict):
        return {fill(key, captured): fill(one, captured) for key, one in value.items()}
    return value


def body_of(step):
    if "json" in step:
        return json.dumps(step["json"], ensure_ascii=False).encode("utf-8", "surrogatepass")
    if "text" in step:
        return step["text"].encode()
    if "base64" in step:
        return base64.b64decode(step["base64"])
    if "bytes" in step:
        made = step["bytes"]
        piece, count = made["fill"], made["count"]
        filled = (piece * (count // len(piece) + 1))[:count]
        return (made.get("prefix", "") + filled + made.get("suffix", "")).encode()
    return None


def text_of(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def pick(exchange, place):
    kind, *names = place.split(".")
    if kind == "text":
        return exchange.body.decode()
    if kind == "headers":
        return exchange.response.headers[".".join(names)]
    found = exchange.json
    for name in names:
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


def described(step, exchange):
    asked = json.dumps(step.get("json", ""), default=repr)[:1000]
    text = exchange.body[:1000].decode("utf-8", "replace")
    return f"{step['call']} {step.get('query', '')} {asked}\n  -> {exchange.response.status_code} {text}"
