"""The OpenAI Agents SDK's own session machinery, and a sandbox agent with a model of canned answers, on Cloche."""

import io
from pathlib import Path

import pytest
from agents import ModelResponse, Runner, RunConfig, Usage
from agents.models.interface import Model
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecTimeoutError,
    InvalidManifestPathError,
    PtySessionNotFoundError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.snapshot import LocalSnapshotSpec
from cloche_openai_agents import ClocheSandboxClient, ClocheSandboxClientOptions
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


@pytest.fixture
def manifest():
    return Manifest(entries={"notes/hello.txt": File(content=b"hello")}, environment={"value": {"WHO": "agents"}})


async def test_a_session_runs_reads_writes_and_is_deleted(manifest):
    client = ClocheSandboxClient()
    session = await client.create(manifest=manifest, options=ClocheSandboxClientOptions(exposed_ports=(8000,)))
    async with session:
        result = await session.exec("cat notes/hello.txt; echo $WHO >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == (b"hello", b"agents\n", 3)
        await session.write(Path("data.bin"), io.BytesIO(bytes(range(256))))
        assert (await session.read(Path("data.bin"))).read() == bytes(range(256))
        with pytest.raises(WorkspaceReadNotFoundError):
            await session.read(Path("nothing"))
        await session.exec("ln -s /etc/passwd out")
        for outside in ("/etc/passwd", "../etc/passwd", "out"):
            with pytest.raises(InvalidManifestPathError):
                await session.read(Path(outside))
        with pytest.raises(ExecTimeoutError):
            await session.exec("sleep 30", timeout=0.5)
        assert (await session.exec("whoami", user="user")).stdout == b"user\n"
        assert (await session.resolve_exposed_port(8000)).url_for("http").startswith("https://8000-sbx-")
    await client.delete(session)
    assert not await session.running()


async def test_a_session_goes_on_in_its_machine_and_from_its_snapshot(manifest, tmp_path):
    client = ClocheSandboxClient()
    session = await client.create(manifest=manifest, snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await session.start()
    await session.write(Path("kept"), io.BytesIO(b"kept"))
    await session.stop()
    payload = client.serialize_session_state(session.state)
    again = await client.resume(client.deserialize_session_state(payload))
    assert again.state.sandbox_id == session.state.sandbox_id
    await again.start()
    assert (await again.read(Path("kept"))).read() == b"kept"
    await client.delete(again)
    anew = await client.resume(client.deserialize_session_state(payload))
    assert anew.state.sandbox_id != session.state.sandbox_id
    await anew.start()
    assert (await anew.read(Path("kept"))).read() == b"kept"
    await client.delete(anew)


async def test_terminals_take_input_and_are_told_of_their_end(manifest):
    client = ClocheSandboxClient()
    session = await client.create(manifest=manifest)
    async with session:
        assert session.supports_pty()
        quick = await session.pty_exec_start("tty; echo $WHO; cat notes/hello.txt; exit 3", tty=True, yield_time_s=20)
        assert (quick.process_id, quick.exit_code) == (None, 3)
        assert quick.output.startswith(b"/dev/pts/") and quick.output.endswith(b"agents\r\nhello")
        shell = await session.pty_exec_start("python3", "-q", shell=False, tty=True, yield_time_s=1)
        assert b">>> " in shell.output and shell.exit_code is None
        told = await session.pty_write_stdin(session_id=shell.process_id, chars="print(6 * 7)\n", yield_time_s=1)
        assert b"\n42\r\n" in told.output
        sandbox = session._inner.sandbox
        await sandbox.suspend()
        await sandbox.wait_for("SANDBOX_STATE_SUSPENDED")
        await sandbox.resume()
        await sandbox.wait_for("SANDBOX_STATE_RUNNING")
        end = await session.pty_write_stdin(session_id=shell.process_id, chars="exit(4)\n", yield_time_s=20)
        assert (end.process_id, end.exit_code) == (None, 4)
        with pytest.raises(PtySessionNotFoundError):
            await session.pty_write_stdin(session_id=shell.process_id, chars="")
        plain = await session.pty_exec_start("[ -t 1 ] || echo plain; echo oh >&2; sleep 60", yield_time_s=1)
        assert plain.output == b"plain\noh\n"
        with pytest.raises(RuntimeError):
            await session.pty_write_stdin(session_id=plain.process_id, chars="x")
        late = await session.pty_exec_start("sleep 60", timeout=0.3, yield_time_s=20)
        assert late.process_id is None and late.exit_code != 0
        assert len(await sandbox.processes.list(status="running")) == 1
        await session.pty_terminate_all()
        assert await sandbox.processes.list(status="running") == []
    await client.delete(session)


class _Canned(Model):
    def __init__(self, *outputs):
        self._outputs = list(outputs)
        self.seen = []

    async def get_response(self, system_instructions, input, *_, **__):
        self.seen.append(input)
        return ModelResponse(output=[self._outputs.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


async def test_an_agent_uses_its_shell(manifest):
    call = ResponseFunctionToolCall(
        type="function_call", call_id="c1", name="exec_command", arguments='{"cmd": "cat notes/hello.txt"}'
    )
    said = ResponseOutputText(type="output_text", text="done", annotations=[])
    message = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[said])
    model = _Canned(call, message)
    agent = SandboxAgent(name="worker", model=model, instructions="Work.", default_manifest=manifest)
    config = RunConfig(sandbox=SandboxRunConfig(client=ClocheSandboxClient()), tracing_disabled=True)
    result = await Runner.run(agent, "read it", run_config=config)
    assert result.final_output == "done"
    assert "hello" in str(model.seen[-1])


