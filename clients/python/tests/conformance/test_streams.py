"""What comes piece by piece, and what the client does by itself, against the real service through both clients."""

import hashlib
import io
import tarfile
import time

import cloche
import httpx
import pytest
from cloche import AsyncCloche, Cloche
from cloche._request import Request

from .bridge import Bridge, Loop


@pytest.fixture(scope="module")
def client(request, target):
    if request.config.getoption("--flavour") == "sync":
        with Cloche() as made:
            yield made
        return
    loop = Loop()
    made = Bridge(loop, AsyncCloche())
    yield made
    made.close()
    loop.close()


@pytest.fixture(scope="module")
def sandbox(client):
    made = client.create(name="python-streams", metadata={"run": str(time.time_ns())})
    yield made
    made.delete()
    made.wait_until_deleted()


@pytest.fixture
def pieces(request):
    """An iterable of the client's own kind."""
    asynchronous = request.config.getoption("--flavour") == "async"

    def of(*parts, pause=0.0):
        def one_by_one():
            for part in parts:
                time.sleep(pause)
                if isinstance(part, Exception):
                    raise part
                yield part

        async def one_by_one_async():
            for part in one_by_one():
                yield part

        return one_by_one_async() if asynchronous else one_by_one()

    return of


def test_exec_as_it_comes(sandbox):
    line = "echo one; sleep 0.3; echo two >&2; exit 3"
    events = [(time.monotonic(), event) for event in sandbox.exec_stream(["sh", "-c", line])]
    assert [(one.type, getattr(one, "data", one.type)) for _, one in events] == [
        ("stdout", "one\n"),
        ("stderr", "two\n"),
        ("exit", "exit"),
    ]
    assert events[-1][1].exit_code == 3 and not events[-1][1].ok
    assert events[1][0] - events[0][0] > 0.15, "the first line came before the second was written"


def test_bytes_in_and_out_while_it_runs(sandbox, pieces):
    sent = bytes(range(256)) * 4000
    events = list(sandbox.exec_stream_bytes(["cat"], stdin=pieces(sent, b"\xff\xfe", sent, pause=0.1)))
    assert b"".join(one.data for one in events[:-1]) == sent + b"\xff\xfe" + sent
    assert events[-1].exit_code == 0
    assert sandbox.exec(["od", "-An", "-tx1"], stdin=b"\xff\x00").stdout.split() == ["ff", "00"]


_FAILURES = [
    OSError("no more of this"),
    cloche.ClocheConnectionError("no more of this"),
    cloche.NotFoundError("no more of this", code="not_found", status=404),
]


@pytest.mark.parametrize("failure", _FAILURES, ids=lambda one: type(one).__name__)
def test_input_that_fails_ends_the_command_and_is_told(sandbox, pieces, failure):
    """Also where it fails as the client itself does: the input may be another sandbox's file."""
    with pytest.raises(type(failure), match="no more of this") as caught:
        list(sandbox.exec_stream_bytes(["timeout", "10", "sh", "-c", "cat > /dev/null"], stdin=pieces(b"a", failure)))
    assert caught.value is failure


def test_the_end_of_the_command_does_not_wait_for_its_input(sandbox, pieces):
    events = list(sandbox.exec_stream_bytes(["true"], stdin=pieces(b"a", b"b", b"c", pause=0.3)))
    assert events[-1].exit_code == 0


def test_leaving_a_stream_kills_the_command(sandbox):
    stream = sandbox.exec_stream(["sh", "-c", "echo $$; exec sleep 1000"])
    pid = next(iter(stream)).data.strip()
    assert sandbox.files.exists(f"/proc/{pid}")
    stream.close()
    for _ in range(100):
        if not sandbox.files.exists(f"/proc/{pid}"):
            return
        time.sleep(0.1)
    pytest.fail("the command lives on")


def test_processes_tell_their_output_from_any_offset(sandbox):
    started = sandbox.processes.start(["sh", "-c", "echo one; read line; echo $line; echo err >&2"], stdin="open", tag="t")
    assert started.status == "running" and started.tag == "t"
    assert sandbox.processes.write_stdin(started.process_id, "two\n").bytes == 4
    events = list(sandbox.processes.events(started.process_id))
    assert b"".join(one.data for one in events if one.type == "stdout") == b"one\ntwo\n"
    assert b"".join(one.data for one in events if one.type == "stderr") == b"err\n"
    assert events[-1].type == "exit" and events[-1].process.exit_code == 0
    again = list(sandbox.processes.events(started.process_id, after_stdout=4, after_stderr=4))
    assert [(one.offset, one.data) for one in again if one.type == "stdout"] == [(4, b"two\n")]
    assert b"".join(sandbox.processes.output(started.process_id, after=2)) == b"e\ntwo\n"
    with_terminal = sandbox.processes.start(["stty", "size"], tty=cloche.TerminalSize(cols=90, rows=30))
    assert sandbox.processes.wait(with_terminal.process_id).tty == cloche.TerminalSize(90, 30)
    assert b"".join(sandbox.processes.output(with_terminal.process_id)) == b"30 90\r\n"


def test_files_in_parts_and_archives_in_pieces(sandbox, pieces):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, size in (("small", 5), ("large", 3_000_000)):
            entry = tarfile.TarInfo(name)
            entry.size = size
            tar.addfile(entry, io.BytesIO(b"x" * size))
    sent = archive.getvalue()
    halves = pieces(sent[: len(sent) // 2], sent[len(sent) // 2 :])
    assert sandbox.files.unpack("/root/unpacked", halves).entries == 2
    assert len(sandbox.files.read("/root/unpacked/large")) == 3_000_000
    assert b"".join(sandbox.files.read_stream("/root/unpacked/large", start=2_999_999)) == b"x"
    packed = io.BytesIO(b"".join(sandbox.files.pack("/root/unpacked")))
    with tarfile.open(fileobj=packed) as tar:
        assert {member.name.split("/")[-1]: member.size for member in tar if member.isfile()} == {"small": 5, "large": 3_000_000}


def test_uploads_of_any_size_and_their_checks(sandbox, pieces):
    content = bytes(range(256)) * 20_000
    digest = hashlib.sha256(content).hexdigest()
    third = len(content) // 3
    sent = pieces(content[:third], content[third:])
    entry = sandbox.files.upload("/srv/up/large", sent, mode="0640", owner="user", sha256=digest)
    assert (entry.size, entry.permissions, entry.owner) == (len(content), "0640", "user")
    assert sandbox.files.read("/srv/up/large", as_user="user") == content
    with pytest.raises(cloche.InvalidArgumentError, match="SHA-256"):
        sandbox.files.upload("/srv/up/large", pieces(b"other"), sha256=digest)
    for failure in (OSError("no more of this"), httpx.ReadError("no more of this")):
        with pytest.raises(type(failure), match="no more of this"):
            sandbox.files.upload("/srv/up/large", pieces(b"part", failure))
    before = sandbox.files.head("/srv/up/large")
    assert before.size == len(content) and before.etag and before.last_modified
    assert sandbox.files.upload("/srv/up/large", "end", append=True).size == len(content) + 3
    assert sandbox.files.head("/srv/up/large").etag != before.etag
    with pytest.raises(cloche.PermissionDeniedError):
        sandbox.files.upload("/etc/new", b"x", as_user="user")


def test_a_watch_from_its_first_moment(sandbox):
    sandbox.files.mkdir("/srv/watched")
    with sandbox.files.watch("/srv/watched") as changes:
        sandbox.files.write("/srv/watched/a", "x")
        sandbox.files.move("/srv/watched/a", "/srv/watched/b")
        seen = []
        for change in changes:
            seen.append(change)
            if change.type == "renamed":
                break
    assert (seen[0].type, seen[0].path, seen[0].entry_type) == ("created", "/srv/watched/a", "file")
    assert (seen[-1].path, seen[-1].from_) == ("/srv/watched/b", "/srv/watched/a")
    unread = sandbox.files.watch("/srv/watched")
    unread.close()
    ends = sandbox.files.watch("/srv/watched")
    sandbox.files.delete("/srv/watched", recursive=True)
    assert [one.type for one in ends][-1] == "deleted"


def test_a_link_needs_no_token(client, sandbox):
    sandbox.files.write("/srv/linked", "by link")
    link = sandbox.files.link("/srv/linked", once=True)
    # No header but the client's own; its connections find the sandbox's name and trust its CA.
    assert client._transport.read(client._transport.send(Request("GET", link.url))) == b"by link"
    with pytest.raises(cloche.UnauthenticatedError):
        client._transport.send(Request("GET", link.url))


def test_a_terminal_is_a_dialogue(sandbox):
    shell = sandbox.processes.terminal(["sh"], cols=90, rows=20, env={"PS1": "$ "})
    with sandbox.processes.attach(shell.process_id) as attached:
        attached.resize(cols=70, rows=10)
        attached.write("stty size; read word; echo got $word; exit 4\n")
        text, answered, end = "", False, None
        for event in attached:
            if event.type == "stdout":
                text += event.data.decode()
                if "10 70" in text and not answered:
                    answered = True
                    attached.write("hello\n")
            elif event.type == "exit":
                end = event.process
    assert "got hello" in text and end is not None and end.exit_code == 4
    again = sandbox.processes.attach(shell.process_id, after_stdout=attached.offsets["stdout"])
    assert [event.type for event in again] == ["exit"]


def test_an_attached_process_takes_megabytes_and_outlives_its_client(sandbox):
    sent = bytes(range(256)) * 8_000
    counter = sandbox.processes.start(["sh", "-c", "wc -c; sleep 1000"], stdin="open")
    with sandbox.processes.attach(counter.process_id) as attached:
        attached.write(sent)
        attached.end_input()
        first = next(iter(attached))
    assert first.data.strip() == str(len(sent)).encode()
    assert sandbox.processes.get(counter.process_id).status == "running"
    ended = sandbox.processes.attach(counter.process_id, after_stdout=attached.offsets["stdout"])
    sandbox.processes.signal(counter.process_id, "SIGKILL")
    assert list(ended)[-1].process.ended_by == "signal"
    with pytest.raises(cloche.NotFoundError):
        sandbox.processes.attach("proc-00000000000000000000")


def test_errors_say_which_case_they_are(sandbox):
    ended = sandbox.processes.start(["true"])
    sandbox.processes.wait(ended.process_id)
    for reason, call in (
        ("is_directory", lambda: sandbox.files.read("/root")),
        ("not_empty", lambda: sandbox.files.delete("/etc")),
        ("no_such_user", lambda: sandbox.files.read("/etc/passwd", as_user="nobody-at-all")),
        ("process_ended", lambda: sandbox.processes.signal(ended.process_id, "SIGTERM")),
        (None, lambda: sandbox.files.read("/nothing")),
    ):
        with pytest.raises(cloche.ClocheAPIError) as caught:
            call()
        assert caught.value.reason == reason, caught.value


def test_a_name_that_is_not_utf_8(sandbox):
    name = b"/root/caf\xe9"
    sandbox.files.write(name, "black")
    entry = next(one for one in sandbox.files.list("/root").entries if one.path_bytes == name)
    assert sandbox.files.read_text(entry.path_bytes) == "black"
    sandbox.files.move(name, b"/root/th\xe9")
    assert not sandbox.files.exists(name) and sandbox.files.exists(b"/root/th\xe9")


def test_the_log_of_a_service_as_it_is_written(sandbox):
    sandbox.services.put("clock", "sh", args=["-c", "while echo tick; do sleep 0.1; done"])
    sandbox.services.start("clock")
    text, log = "", sandbox.services.follow_logs("clock")
    for piece in log:
        text += piece
        if text.count("tick") > 3:
            break
    log.close()
    sandbox.services.delete("clock")


def test_every_key_page_after_page(sandbox):
    sandbox.store.batch([{"op": "set", "key": f"k/{n:05}", "value": n} for n in range(1000)])
    assert list(sandbox.store.all_keys(prefix="k/")) == [f"k/{n:05}" for n in range(1000)]


def test_a_refused_token_is_renewed_and_the_call_repeated(client, sandbox):
    fresh = client.get(sandbox.id)
    fresh._tokens._token = cloche.DataPlaneToken("not-a-token", 2**31, sandbox._tokens.latest.data_plane_url)
    assert fresh.exec(["echo", "again"]).stdout == "again\n"


def test_suspend_resume_fork_and_list(client, sandbox):
    sandbox.exec(["sh", "-c", "echo kept > /root/kept"])
    clone = sandbox.fork(name="python-clone")
    try:
        assert clone.info.source_sandbox_id == sandbox.id
        assert clone.files.read_text("/root/kept") == "kept\n"
        clone.suspend()
        assert clone.wait_for("SANDBOX_STATE_SUSPENDED").state == "SANDBOX_STATE_SUSPENDED"
        with pytest.raises(cloche.UnavailableError, match="SUSPENDED"):
            clone.exec(["true"])
        clone.resume()
        clone.wait_for("SANDBOX_STATE_RUNNING")
        found = {one.id for one in client.list(metadata=sandbox.info.metadata, page_size=1)}
        assert found == {sandbox.id, clone.id}
    finally:
        clone.delete()
