"""What comes piece by piece, and what the client does by itself, against the real service through both clients."""

import io
import tarfile
import time

import cloche
import pytest
from cloche import AsyncCloche, Cloche

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


def test_input_that_fails_ends_the_command_and_is_told(sandbox, pieces):
    with pytest.raises(OSError, match="no more of this"):
        list(sandbox.exec_stream_bytes(["sh", "-c", "cat > /dev/null"], stdin=pieces(b"a", OSError("no more of this"))))


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
    fresh._tokens._token = cloche.DataPlaneToken("not-a-token", 2**31)
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
