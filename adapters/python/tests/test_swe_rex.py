"""SWE-ReX's requests, in a sandbox. Its own tests, which PyPI does not have: compat/swe-rex.ts."""

import asyncio

import cloche
import pytest
from cloche_swe_rex import ClocheDeploymentConfig
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)


@pytest.fixture(scope="module")
async def deployment():
    made = ClocheDeploymentConfig(create={"env": {"WHO": "rex"}}, user="user").get_deployment()
    with pytest.raises(DeploymentNotStartedError):
        await made.is_alive()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(scope="module")
async def runtime(deployment):
    return deployment.runtime


async def test_sessions_keep_their_state_apart(runtime):
    for name in ("one", "two"):
        await runtime.create_session(CreateBashSessionRequest(session=name))
    run = lambda command, **how: runtime.run_in_session(BashAction(command=command, timeout=10, **how))  # noqa: E731
    await asyncio.gather(run("x=1; cd /tmp", session="one"), run("x=2", session="two"))
    told = await asyncio.gather(*(run('echo "$x $PWD $WHO"', session=name) for name in ("one", "two")))
    assert [one.output for one in told] == ["1 /tmp rex\n", "2 /home/user rex\n"]
    assert (await run("false", session="one", check="silent")).exit_code == 1
    with pytest.raises(NonZeroExitCodeError):
        await run("false", session="one", check="raise")
    with pytest.raises(CommandTimeoutError):
        await runtime.run_in_session(BashAction(command="sleep 60", session="one", timeout=0.3))
    await runtime.run_in_session(BashInterruptAction(session="one"))
    assert (await run("echo $x", session="one")).output == "1\n"
    python = {"is_interactive_command": True, "expect": [">>> "], "session": "two"}
    await run("python3", **python)
    assert "42" in (await run("print(6 * 7)", **python)).output
    await run("quit()", session="two", is_interactive_quit=True)
    assert (await run("echo $x", session="two")).output == "2\n"


async def test_a_session_outlives_a_suspend(deployment, runtime):
    await runtime.create_session(CreateBashSessionRequest(session="kept"))
    await runtime.run_in_session(BashAction(command="y=kept", session="kept", timeout=10))
    sandbox = runtime.sandbox
    sandbox.suspend()
    sandbox.wait_for("SANDBOX_STATE_SUSPENDED")
    assert not await deployment.is_alive()
    sandbox.resume()
    sandbox.wait_for("SANDBOX_STATE_RUNNING")
    assert await deployment.is_alive(timeout=10)
    assert (await runtime.run_in_session(BashAction(command="echo $y", session="kept", timeout=10))).output == "kept\n"
    await runtime.close_session(CloseBashSessionRequest(session="kept"))
    with pytest.raises(SessionDoesNotExistError):
        await runtime.run_in_session(BashAction(command="echo", session="kept"))


async def test_commands_and_files(runtime, tmp_path):
    told = await runtime.execute(Command(command="pwd; echo $MORE >&2; exit 3", shell=True, env={"MORE": "more"}))
    assert (told.stdout, told.stderr, told.exit_code) == ("/home/user\n", "more\n", 3)
    merged = await runtime.execute(Command(command=["sh", "-c", "echo 1; echo 2 >&2"], merge_output_streams=True))
    assert (merged.stdout, merged.stderr) == ("1\n2\n", "")
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "60"], timeout=0.2))
    await runtime.write_file(WriteFileRequest(path="new/folder/file", content="dös"))
    assert (await runtime.read_file(ReadFileRequest(path="/home/user/new/folder/file"))).content == "dös"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="nothing"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "deep.txt").write_text("deep")
    await runtime.upload(UploadRequest(source_path=str(tmp_path), target_path="up"))
    await runtime.upload(UploadRequest(source_path=str(tmp_path / "in" / "deep.txt"), target_path="/tmp/one.txt"))
    told = await runtime.execute(Command(command="cat up/in/deep.txt /tmp/one.txt; stat -c %U up", shell=True))
    assert told.stdout == "deepdeepuser\n"


async def test_stop_deletes_the_machine():
    made = ClocheDeploymentConfig().get_deployment()
    await made.start()
    id = made.runtime.sandbox.id
    await made.stop()
    await made.stop()
    with cloche.Cloche() as client:
        try:
            assert client.get(id).info.state == "SANDBOX_STATE_DELETING"
        except cloche.NotFoundError:
            pass
