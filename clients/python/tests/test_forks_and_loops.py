"""A client that is used after fork, in further event loops and by pickle: no call gets the answer to another's."""

import asyncio
import json
import multiprocessing
import os
import pickle
import threading

import pytest

import cloche
from cloche import AsyncCloche, Cloche

from .local_service import alone, sandbox_json, server

assert alone  # A fixture of every test.

CALLS = 15


def echo(request):
    """Answers an exec with its command, everything else with the sandbox or a token of it."""
    if not request.path.endswith("/exec"):
        token = {"jwt": "jwt", "expires_at_unix": 2**31, "data_plane_url": request.server.url}
        return 200, json.dumps(token).encode() if "Issue" in request.path else sandbox_json("a.cloche.localhost", request.server.url).encode()
    done = {"stdout": request.server.sent(request)["cmd"][0], "stderr": "", "exit_code": 0, "ok": True}
    return 200, json.dumps({**done, "duration_ms": 1, "timed_out": False}).encode()


@pytest.fixture
def service():
    with server(echo) as made:
        made.url = f"http://127.0.0.1:{made.port}"
        made.sent = lambda request: json.loads(request.body)
        yield made


def in_children(count, work):
    """What `work(number)` answers in so many forked processes at once."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def run(number):
        try:
            queue.put(work(number))
        except BaseException as error:
            queue.put(repr(error))

    children = [context.Process(target=run, args=(number,)) for number in range(count)]
    for child in children:
        child.start()
    found = [queue.get(timeout=30) for _ in children]
    for child in children:
        child.join()
    return found


def wrong_answers(sandbox, number):
    return sum(sandbox.exec([f"{number}-{turn}"]).stdout != f"{number}-{turn}" for turn in range(CALLS))


async def wrong_async_answers(sandbox, number):
    return sum([(await sandbox.exec([f"{number}-{turn}"])).stdout != f"{number}-{turn}" for turn in range(CALLS)])


def test_processes_that_fork_share_no_connection(service):
    with Cloche(service.url, "k") as client:
        sandbox = client.get("sbx-a")
        sandbox.exec(["first"])
        # Another thread holds the lock of the token at the moment of the fork.
        held, release = threading.Event(), threading.Event()

        def hold():
            with sandbox._tokens._lock:
                held.set()
                release.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()

        def work(number):
            sandbox._tokens.replace(None)
            return wrong_answers(sandbox, number)

        assert in_children(4, work) == [0, 0, 0, 0]
        release.set()
        thread.join()
        assert wrong_answers(sandbox, "parent") == 0


def test_a_child_of_a_child_and_the_parent_at_the_same_time(service):
    with Cloche(service.url, "k") as client:
        sandbox = client.get("sbx-a")

        def work(number):
            return [wrong_answers(sandbox, number), *in_children(2, lambda inner: wrong_answers(sandbox, f"{number}-{inner}"))]

        assert in_children(2, work) == [[0, 0, 0]] * 2


def test_an_asyncio_client_after_fork(service):
    client = AsyncCloche(service.url, "k")

    async def first():
        sandbox = await client.get("sbx-a")
        await sandbox.exec(["first"])
        return sandbox

    sandbox = asyncio.run(first())
    assert in_children(4, lambda number: asyncio.run(wrong_async_answers(sandbox, number))) == [0, 0, 0, 0]


def test_an_asyncio_client_in_one_loop_after_another_and_in_two_at_once(service):
    client = AsyncCloche(service.url, "k")
    sandbox = asyncio.run(client.get("sbx-a"))
    for turn in range(3):
        assert asyncio.run(wrong_async_answers(sandbox, turn)) == 0
    assert len(client._transport._clients._values) == 1, "what belongs to a closed loop is dropped"
    found = []
    threads = [
        threading.Thread(target=lambda number=number: found.append(asyncio.run(wrong_async_answers(sandbox, number))))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0, 0, 0, 0]


def test_a_stream_belongs_to_the_process_and_the_loop_that_opened_it(service):
    with Cloche(service.url, "k") as client:
        stream = client.get("sbx-a").files.read_stream("/etc/hostname")
        next(iter(stream))
        [told] = in_children(1, lambda _: next(iter(stream)))
        assert "ClocheUsageError" in told and "this stream was opened in another process" in told
        assert next(iter(stream), None) is None

    async def opened():
        stream = await (await AsyncCloche(service.url, "k").get("sbx-a")).files.read_stream("/etc/hostname")
        return stream

    stream = asyncio.run(opened())
    with pytest.raises(cloche.ClocheUsageError, match="another process or event loop; open one in this"):
        asyncio.run(stream.read())


def test_a_child_that_leaves_the_block_of_its_parent_deletes_nothing(service):
    with Cloche(service.url, "k") as client:
        with client.create() as sandbox:

            def leave(_):
                sandbox.__exit__(None, None, None)
                client.__exit__(None, None, None)

            in_children(1, leave)
            assert not [path for path, *_ in service.seen if path.endswith("DeleteSandbox")]
            assert sandbox.exec(["still"]).stdout == "still"
        assert [path for path, *_ in service.seen if path.endswith("DeleteSandbox")]


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_a_sandbox_is_handed_to_a_process_by_pickle(service, start):
    """As `multiprocessing` does where it does not fork: by default from Python 3.14 on, and on macOS and Windows."""
    with Cloche(service.url, "k") as client, multiprocessing.get_context(start).Pool(2) as pool:
        sandbox = client.get("sbx-a")
        assert pool.starmap(wrong_answers, [(sandbox, number) for number in range(2)]) == [0, 0]
        again = pickle.loads(pickle.dumps(client))
        assert wrong_answers(again.get("sbx-a"), os.getpid()) == 0


def test_a_closed_client_says_so(service):
    client = Cloche(service.url, "k")
    client.close()
    with pytest.raises(cloche.ClocheUsageError, match="was closed; make another"):
        client.get("sbx-a")
