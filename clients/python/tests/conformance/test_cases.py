"""Every case of spec/cases through the client: `--flavour sync` is `Cloche`, `--flavour async` is `AsyncCloche`."""

import json
import os
from pathlib import Path

import pytest
from cloche import ClocheConnectionError

from .session import Session, sandbox_use

# Read and checked by tests/conformance/case-file.ts, which writes them as JSON.
FILES = json.loads(Path(os.environ["CLOCHE_TEST_CASES"]).read_text())
CASES = [
    pytest.param(file["path"], file, case, id=f"{file['path']}: {case['name']}")
    for file in FILES
    for case in file["cases"]
]

# Refused before the whole body was sent: asyncio ends the connection at the failed write, with the answer unread.
EARLY_ANSWERS = {("async", "an argument or a body too large is refused, and the sandbox goes on")}


@pytest.fixture(scope="session")
def session(request, target):
    made = Session(request.config.getoption("--flavour"), target)
    yield made
    made.close()
    if len(request.session.items) < len(CASES):
        return
    share = made.methods / (made.methods + made.plain)
    print(f"\n{made.methods} steps through methods of the client, {made.plain} as plain requests")
    assert share > 0.5, "most steps must go through the methods that a program uses"


@pytest.fixture(scope="session")
def shared(session):
    made = {}

    def of(name, file):
        if name not in made:
            for other in list(made):
                session.discard(made.pop(other).id)
            made[name] = session.create(file.get("create"))
        return made[name]

    return of


@pytest.mark.parametrize(("name", "file", "case"), CASES)
def test_case(name, file, case, session, shared):
    sandbox = shared(name, file) if sandbox_use(file, case) == "shared" else None
    if "known_failure" not in case:
        try:
            session.run(file, case, sandbox)
        except ClocheConnectionError:
            if (session.flavour, case["name"]) not in EARLY_ANSWERS:
                raise
            pytest.xfail("asyncio drops an answer that came while the body was being sent")
        return
    with pytest.raises(AssertionError):
        session.run(file, case, sandbox)
