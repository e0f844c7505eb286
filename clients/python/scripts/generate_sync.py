"""Writes src/cloche/_sync from src/cloche/_async, word by word. `--check`: fails where what is there is another text.

`_concurrency.py` differs between asyncio and threads and is written by hand on both sides.
"""

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "cloche"
BY_HAND = {"_concurrency.py"}
WORDS = [
    (r"AsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"AnyIOBackend", "SyncBackend"),
    (r"httpx\.AsyncClient", "httpx.Client"),
    (r"httpx\.AsyncByteStream", "httpx.SyncByteStream"),
    (r"Callable\[\[\], Awaitable\[(\w+)\]\]", r"Callable[[], \1]"),
    (r"Awaitable, ", ""),
    (r"\b(_?)Async(\w+)", r"\1\2"),
    (r"\basync (def|for|with) ", r"\1 "),
    (r" async for ", " for "),
    (r"\bawait ", ""),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\b(handle_)async_", r"\1"),
    (r"\ba(close|read|iter_raw|iter_stream)\b", r"\1"),
    (r"from typing import (.*)$", lambda found: "from typing import " + _sorted(found.group(1))),
    (r"The client for asyncio, from which the other is generated", "The client for ordinary programs, generated from _async"),
    (r"asyncio client", "client for ordinary programs"),
    (r"_sync/_network", "_async/_network"),
]


def _sorted(names: str) -> str:
    kinds = sorted(set(names.split(", ")), key=lambda name: (not name.isupper(), name[0].islower(), name))
    return ", ".join(kinds)


def translated(text: str) -> str:
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def main() -> int:
    stale = []
    for source in sorted((PACKAGE / "_async").glob("*.py")):
        if source.name in BY_HAND:
            continue
        target = PACKAGE / "_sync" / source.name
        text = translated(source.read_text())
        if not target.exists() or target.read_text() != text:
            stale.append(target.name)
            if "--check" not in sys.argv:
                target.write_text(text)
    if "--check" in sys.argv and stale:
        print(f"_sync is not what generate_sync.py makes of _async: {', '.join(stale)}; run it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
