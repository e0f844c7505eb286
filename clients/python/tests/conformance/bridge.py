"""The asyncio client with the manners of the other, so that the same cases drive both: its loop runs in a thread."""

import asyncio
import inspect
import threading


class Loop:
    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Bridge:
    """Stands for an object of the asyncio client."""

    def __init__(self, loop, target):
        self._bridge = (loop, target)

    def __getattr__(self, name):
        loop, target = self._bridge
        found = getattr(target, "aclose" if name == "close" else name)
        return _bridged_call(loop, found) if callable(found) and not _is_ours(found) else bridged(loop, found)

    def __setattr__(self, name, value):
        if name == "_bridge":
            object.__setattr__(self, name, value)
        else:
            setattr(self._bridge[1], name, value)

    def __enter__(self):
        loop, target = self._bridge

        async def entering():
            return await target.__aenter__()

        return bridged(loop, loop.run(entering()))

    def __exit__(self, *words):
        loop, target = self._bridge

        async def leaving():
            return await target.__aexit__(*words)

        return loop.run(leaving())

    def __iter__(self):
        loop, target = self._bridge

        async def following():
            return await iterator.__anext__()

        iterator = target.__aiter__()
        while True:
            try:
                yield loop.run(following())
            except StopAsyncIteration:
                return


def _bridged_call(loop, function):
    def call(*words, **fields):
        async def calling():
            answer = function(*words, **fields)
            return await answer if inspect.isawaitable(answer) else answer

        return bridged(loop, loop.run(calling()))

    return call


def bridged(loop, value):
    return Bridge(loop, value) if _is_ours(value) or hasattr(value, "__aiter__") else value


def _is_ours(value):
    return type(value).__module__.startswith("cloche._async")
