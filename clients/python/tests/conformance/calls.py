"""The step of a case as a call of the client: the method that a program would use, with the fields as its arguments.

`NoMethod`: the step sends what no method would (a field of a wrong name, null, a header of its own); it then goes as a plain request.
"""

import re
from urllib.parse import unquote


class NoMethod(Exception):
    pass


def gateway_call(gateway, method, fields):
    """A method of the gateway on its message."""
    if method not in _GATEWAY or not isinstance(fields, dict):
        raise NoMethod
    name, first, taken = _GATEWAY[method]
    fields = dict(fields)
    words = [fields.pop(one, None) for one in first]
    if any(not isinstance(one, (str, int)) for one in words):
        raise NoMethod
    arguments = _arguments(fields, taken)
    if method == "UpdateSandbox":
        for field, inner in (("metadata", "entries"), ("public_ports", "ports")):
            if field in arguments:
                if set(arguments[field]) != {inner}:
                    raise NoMethod
                arguments[field] = arguments[field][inner]
    if "from" in arguments:
        arguments["from_"] = arguments.pop("from")
    return getattr(gateway, name)(*words, **arguments)


_TIMING = (
    "name metadata egress timeout_seconds idle_suspend_seconds auto_resume on_host_loss checkpoint_every_seconds"
)
_GATEWAY = {
    "CreateSandbox": (
        "create_sandbox",
        [],
        f"{_TIMING} checkpoint_id template env cpus memory_mb disk_mb runtime public_ports on_timeout idempotency_key",
    ),
    "GetSandbox": ("get_sandbox", ["id"], ""),
    "ListSandboxes": ("list_sandboxes", [], "page_size page_token states metadata order_by name"),
    "DeleteSandbox": ("delete_sandbox", ["id"], ""),
    "SuspendSandbox": ("suspend_sandbox", ["id"], "memory wait_durable"),
    "ResumeSandbox": ("resume_sandbox", ["id"], ""),
    "ForkSandbox": ("fork_sandbox", ["source_sandbox_id"], f"{_TIMING} checkpoint_id idempotency_key count"),
    "IssueDataPlaneToken": ("issue_data_plane_token", ["sandbox_id"], ""),
    "UpdateSandbox": ("update_sandbox", ["id"], f"{_TIMING} public_ports on_timeout"),
    "DeleteCheckpoint": ("delete_checkpoint", ["id"], ""),
    "IssuePortLink": ("issue_port_link", ["sandbox_id", "port"], "path"),
    "GetUsage": ("get_usage", [], "sandbox_id from to page_size page_token"),
    "ListAuditEntries": ("list_audit_entries", [], "subject page_size page_token"),
    "GetSandboxEgress": ("get_sandbox_egress", ["id"], ""),
    "GetSandboxMetrics": ("get_sandbox_metrics", ["id"], ""),
    "CreateApiKey": ("create_api_key", ["name"], "expires_in_seconds"),
    "RevokeApiKey": ("revoke_api_key", ["id"], ""),
}


def data_plane_call(sandbox, method, path, query, json, body, headers):
    """A method of a sandbox on a request of its data plane."""
    for wanted, pattern, call in _DATA_PLANE:
        found = re.fullmatch(pattern, path)
        if wanted == method and found:
            if re.search("%(?![0-9a-fA-F]{2})", path):
                raise NoMethod
            try:
                words = [unquote(word, errors="strict") for word in found.groups()]
            except UnicodeDecodeError as error:
                raise NoMethod from error
            if any(word in ("", ".", "..") for word in words):
                raise NoMethod
            return call(Step(sandbox, words, dict(query), json, body, dict(headers)))
    raise NoMethod


class Step:
    def __init__(self, sandbox, words, query, json, body, headers):
        self.sandbox, self.words, self.query, self.json, self.body, self.headers = sandbox, words, query, json, body, headers

    def only(self, query="", headers=""):
        """Raises NoMethod where there is more than this; a query's numbers and booleans must be such."""
        if set(self.query) - set(query.split()) or set(self.headers) - set(headers.split()):
            raise NoMethod
        if any(isinstance(value, str) and name in _NOT_TEXT for name, value in self.query.items()):
            raise NoMethod
        return self

    def fields(self, names):
        if self.json is None and self.body is not None:
            raise NoMethod
        return _arguments({} if self.json is None else self.json, names)

    def required(self, names, optional=""):
        fields = self.fields(f"{names} {optional}")
        words = [fields.pop(name) for name in names.split() if name in fields]
        if len(words) != len(names.split()):
            raise NoMethod
        return words, fields

    def user(self):
        """Whose rights: one header or parameter."""
        named = [one for one in (self.headers.get("x-file-user"), self.query.get("as_user")) if one is not None]
        if len(named) > 1:
            raise NoMethod
        return {"as_user": named[0]} if named else {}

    def path(self):
        """A path that came percent-encoded byte by byte is bytes."""
        path = self.query.get("path")
        if not isinstance(path, str):
            raise NoMethod
        return path


_NOT_TEXT = {"append", "depth", "limit", "recursive", "tail", "follow", "after", "after_stdout", "after_stderr"}


def _arguments(fields, names):
    if not isinstance(fields, dict) or set(fields) - set(names.split()) or None in fields.values():
        raise NoMethod
    return dict(fields)


def _exec(step):
    events = step.headers.pop("accept", None) == "text/event-stream"
    (cmd,), fields = step.only().required("cmd", "dir env stdin stdin_base64 timeout_ms user")
    if not isinstance(cmd, list) or events:
        raise NoMethod
    if "stdin_base64" in fields:
        raise NoMethod
    return step.sandbox.exec(cmd, **fields)


_WISHES = {"x-file-mode": "mode", "x-file-owner": "owner", "x-file-group": "group", "x-content-sha256": "sha256"}


def _writes(name, optional=""):
    def call(step):
        step.only(f"path as_user {optional}", f"x-file-user {' '.join(_WISHES)}")
        fields = {_WISHES[name]: value for name, value in step.headers.items() if name in _WISHES}
        if "append" in step.query:
            fields["append"] = step.query["append"]
        return getattr(step.sandbox.files, name)(step.path(), step.body or b"", **fields, **step.user())

    return call


def _read(step):
    step.only("path as_user", "x-file-user")
    return step.sandbox.files.read(step.path(), **step.user())


def _on_path(name, optional=""):
    def call(step):
        step.only(f"path as_user {optional}", "x-file-user")
        fields = {key: value for key, value in step.query.items() if key not in ("path", "as_user")}
        return getattr(step.sandbox.files, name)(step.path(), **fields, **step.user())

    return call


def _changes(name, required, optional=""):
    def call(step):
        words, fields = step.only("as_user", "x-file-user").required(required, optional)
        return getattr(step.sandbox.files, name)(*words, **fields, **step.user())

    return call


def _unpack(step):
    step.only("path", "content-type")
    return step.sandbox.files.unpack(step.path(), step.body or b"")


def _pack(step):
    step.only("path")
    with_stream = step.sandbox.files.pack(step.path())
    return b"".join(with_stream)


def _in_body(noun, name, required, optional=""):
    def call(step):
        words, fields = step.only().required(required, optional)
        if "cmd" in required and not isinstance(words[-1 if required != "cmd" else 0], list):
            raise NoMethod
        return getattr(getattr(step.sandbox, noun), name)(*step.words, *words, **fields)

    return call


def _plain(noun, name, query=""):
    def call(step):
        step.only(query)
        if step.json not in (None, {}) or step.body not in (None, b"", b"{}"):
            raise NoMethod
        return getattr(getattr(step.sandbox, noun), name)(*step.words, **step.query)

    return call


def _put_service(step):
    (cmd,), fields = step.only().required(
        "cmd",
        "args env working_dir user health_port healthcheck start_timeout_secs stop_signal stop_timeout_secs "
        "needs container image restart "
        "registry_username registry_password registry_ca",
    )
    return step.sandbox.services.put(step.words[0], cmd, **fields)


def _set(step):
    if not isinstance(step.json, dict) or "value" not in step.json or set(step.json) - {"value", "ttl_seconds"}:
        raise NoMethod
    if "ttl_seconds" in step.json and step.json["ttl_seconds"] is None:
        raise NoMethod
    step.only()
    return step.sandbox.store.set(step.words[0], step.json["value"], ttl_seconds=step.json.get("ttl_seconds"))


def _batch(step):
    (operations,), _ = step.only().required("operations")
    if not isinstance(operations, list) or not all(isinstance(one, dict) for one in operations):
        raise NoMethod
    return step.sandbox.store.batch(operations)


def _start_process(step):
    (cmd,), fields = step.only().required(
        "cmd", "dir env user timeout_ms tty stdin merge_output output_limit_bytes keep_seconds tag"
    )
    if not isinstance(cmd, list):
        raise NoMethod
    return step.sandbox.processes.start(cmd, **fields)


def _write_stdin(step):
    step.only("", "content-type")
    return step.sandbox.processes.write_stdin(step.words[0], step.body or b"")


def _resize(step):
    (cols, rows), _ = step.only().required("cols rows")
    return step.sandbox.processes.resize(step.words[0], cols=cols, rows=rows)


def _output(step):
    step.only("stream after follow")
    return b"".join(step.sandbox.processes.output(step.words[0], **step.query))


_NAME = "([^/]+)"
_DATA_PLANE = [
    ("POST", "/v1/exec", _exec),
    ("POST", "/v1/files", _writes("write")),
    ("PUT", "/v1/files", _writes("upload", "append")),
    ("GET", "/v1/files", _read),
    ("DELETE", "/v1/files", _on_path("delete", "recursive")),
    ("GET", "/v1/files/exists", _on_path("exists")),
    ("GET", "/v1/files/list", _on_path("list", "depth attributes")),
    ("GET", "/v1/files/stat", _on_path("stat", "follow attributes")),
    ("POST", "/v1/files/mkdir", _changes("mkdir", "path", "parents")),
    ("POST", "/v1/files/move", _changes("move", "source destination")),
    ("POST", "/v1/files/copy", _changes("copy", "source destination", "recursive")),
    ("POST", "/v1/files/chmod", _changes("chmod", "path mode", "recursive")),
    ("POST", "/v1/files/chown", _changes("chown", "path", "user group recursive")),
    ("POST", "/v1/files/link", _changes("link", "path", "operation expires_in_seconds once")),
    ("GET", "/v1/files/archive", _pack),
    ("POST", "/v1/files/archive", _unpack),
    ("POST", "/v1/checkpoint", _in_body("checkpoints", "create", "", "name")),
    ("GET", "/v1/checkpoint/list", _plain("checkpoints", "page", "limit cursor")),
    ("POST", "/v1/checkpoint/wait", _in_body("checkpoints", "wait", "checkpoint_id", "poll_interval_ms timeout_secs")),
    ("DELETE", f"/v1/checkpoint/{_NAME}", _plain("checkpoints", "delete")),
    ("POST", "/v1/restore", _in_body("checkpoints", "restore", "checkpoint_id")),
    ("GET", "/v1/services", _plain("services", "list")),
    ("GET", f"/v1/services/{_NAME}", _plain("services", "get")),
    ("PUT", f"/v1/services/{_NAME}", _put_service),
    ("DELETE", f"/v1/services/{_NAME}", _plain("services", "delete")),
    ("POST", f"/v1/services/{_NAME}/start", _plain("services", "start")),
    ("POST", f"/v1/services/{_NAME}/stop", _plain("services", "stop")),
    ("POST", f"/v1/services/{_NAME}/exec", _in_body("services", "exec", "cmd", "timeout_secs")),
    ("GET", f"/v1/services/{_NAME}/logs", _plain("services", "logs", "tail")),
    ("GET", "/v1/store", _plain("store", "keys", "prefix limit cursor")),
    ("POST", "/v1/store/batch", _batch),
    ("PUT", "/v1/store/(.+)", _set),
    ("GET", "/v1/store/(.+)", _plain("store", "get")),
    ("DELETE", "/v1/store/(.+)", _plain("store", "delete")),
    ("POST", "/v1/processes", _start_process),
    ("GET", "/v1/processes", _plain("processes", "list", "status")),
    ("GET", f"/v1/processes/{_NAME}", _plain("processes", "get")),
    ("DELETE", f"/v1/processes/{_NAME}", _plain("processes", "delete")),
    ("POST", f"/v1/processes/{_NAME}/signal", _in_body("processes", "signal", "signal")),
    ("POST", f"/v1/processes/{_NAME}/resize", _resize),
    ("POST", f"/v1/processes/{_NAME}/stdin", _write_stdin),
    ("DELETE", f"/v1/processes/{_NAME}/stdin", _plain("processes", "close_stdin")),
    ("POST", f"/v1/processes/{_NAME}/wait", _in_body("processes", "wait", "", "timeout_secs")),
    ("GET", f"/v1/processes/{_NAME}/output", _output),
]
