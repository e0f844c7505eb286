"""mini-swe-agent's own agent, with its deterministic model, in a sandbox."""

import pytest
from cloche_mini_swe_agent import ClocheEnvironment
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.models.test_models import DeterministicModel, make_output


@pytest.fixture(scope="module")
def environment():
    made = get_environment({"environment_class": "cloche_mini_swe_agent.ClocheEnvironment", "env": {"WHO": "swe"}})
    assert isinstance(made, ClocheEnvironment)
    yield made
    made.cleanup()


def test_an_agent_works_and_submits(environment):
    commands = ["echo fixed > answer; echo $WHO; ls /nothing", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer"]
    model = DeterministicModel(outputs=[make_output("next", [{"command": one}]) for one in commands])
    agent = DefaultAgent(model, environment, system_template="You are {{system}}.", instance_template="{{task}}", step_limit=5)
    assert agent.run("fix it")["submission"] == "fixed\n"
    assert "You are Linux." in str(agent.messages[0])
    assert "swe" in str(agent.messages) and "/nothing" in str(agent.messages)


def test_output_in_order_exit_codes_and_time(environment):
    result = environment.execute({"command": "echo one; echo two >&2; echo three; exit 3"})
    assert (result["output"], result["returncode"]) == ("one\ntwo\nthree\n", 3)
    late = environment.execute({"command": "echo first; sleep 30"}, timeout=1)
    assert (late["output"], late["returncode"]) == ("first\n", -1) and "1 seconds" in late["exception_info"]
    assert environment.execute({"command": "pwd"}, cwd="/srv")["output"] == "/srv\n"
    assert environment.execute({"command": "pwd"}, cwd="/not/there")["extra"]["exception_type"] == "InvalidArgumentError"
    assert environment.serialize()["info"]["config"]["environment_type"] == "cloche_mini_swe_agent.ClocheEnvironment"
