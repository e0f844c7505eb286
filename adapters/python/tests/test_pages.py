"""The Python and YAML of docs/adapters.md, as a reader would run it, with the frameworks' own fake models where they have one."""

import ast
import inspect
import re
from pathlib import Path

import cloche
import pytest
import yaml
from agents import ModelResponse, Usage
from agents.models.interface import Model
from agents.models.multi_provider import MultiProvider
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

_PAGE = (Path(__file__).parents[3] / "docs" / "adapters.md").read_text()


def _block(heading: str, language: str = "python") -> str:
    section = _PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)[1]


async def _run(code: str, **names):
    """The names that a block leaves behind; `await` may stand at its top."""
    compiled = compile(code, "docs/adapters.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    ended = eval(compiled, names)  # noqa: S307
    if inspect.isawaitable(ended):
        await ended
    return names


class _Fake(GenericFakeChatModel):
    def bind_tools(self, *_, **__):
        return self


async def test_deep_agents(monkeypatch):
    ran = []
    execute = cloche.Sandbox.exec
    monkeypatch.setattr(cloche.Sandbox, "exec", lambda *words, **how: ran.append(execute(*words, **how)) or ran[-1])
    call = AIMessage("", tool_calls=[{"name": "execute", "args": {"command": "echo from-a-sandbox"}, "id": "c1"}])
    code = _block("LangChain Deep Agents").replace('"anthropic:claude-sonnet-4-5"', "model")
    await _run(code, model=_Fake(messages=iter([call, AIMessage("done")])))
    assert "from-a-sandbox\n" in [one.stdout for one in ran]


async def test_inspect(tmp_path, monkeypatch):
    from inspect_ai import Task, eval_async
    from inspect_ai.dataset import Sample
    from inspect_ai.solver import solver
    from inspect_ai.util import sandbox

    seen = []

    @solver
    def looking():
        async def solve(state, generate):
            seen.append((await sandbox().exec(["id", "-un"])).stdout)
            return state

        return solve

    samples = [Sample(input="Who?", target="user")]
    code = _block("Inspect AI")
    assert "from inspect_ai import Task" in code
    names = await _run(code.replace("dataset=...", "dataset=samples, solver=looking()"), samples=samples, looking=looking)
    assert isinstance(names["mine"](), Task)
    monkeypatch.chdir(tmp_path)
    [log] = await eval_async(names["mine"](), model="mockllm/model", log_dir=str(tmp_path))
    assert (log.status, seen) == ("success", ["user\n"])


def test_mini_swe_agent():
    from minisweagent.environments import get_environment

    made = get_environment(yaml.safe_load(_block("mini-swe-agent", "yaml"))["environment"])
    try:
        assert made.execute({"command": "pwd"})["output"] == "/root\n"
        assert made.sandbox.info.memory_mb == 2048
    finally:
        made.cleanup()


async def test_swe_rex(capsys):
    names = await _run(_block("SWE-ReX"))
    assert capsys.readouterr().out.startswith("Linux ")
    with pytest.raises(Exception, match="not started"):
        await names["deployment"].is_alive()


class _Canned(Model):
    def __init__(self, *outputs):
        self._outputs = list(outputs)
        self.seen = []

    async def get_response(self, system_instructions, input, *_, **__):
        self.seen.append(str(input))
        return ModelResponse(output=[self._outputs.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


async def test_openai_agents(monkeypatch):
    arguments = '{"cmd": "echo from-$((6 * 7))"}'
    call = ResponseFunctionToolCall(type="function_call", call_id="c1", name="exec_command", arguments=arguments)
    said = ResponseOutputText(type="output_text", text="done", annotations=[])
    message = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[said])
    model = _Canned(call, message)
    monkeypatch.setattr(MultiProvider, "get_model", lambda *_: model)
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    names = await _run(_block("OpenAI Agents SDK"))
    assert names["result"].final_output == "done"
    assert "from-42" in model.seen[-1]
