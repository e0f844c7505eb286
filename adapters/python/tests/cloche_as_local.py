"""A plug-in for mini-swe-agent's own tests: their local environment is a sandbox. compat/mini-swe-agent.ts runs them so."""

import minisweagent.environments.local as local
import pytest
from cloche_mini_swe_agent import ClocheEnvironment, ClocheEnvironmentConfig

_made = []


class LocalEnvironmentConfig(ClocheEnvironmentConfig):
    cwd: str = ""


class LocalEnvironment(ClocheEnvironment):
    def __init__(self, *, config_class=LocalEnvironmentConfig, **kwargs):
        super().__init__(config_class=config_class, **kwargs)
        _made.append(self)


local.LocalEnvironment, local.LocalEnvironmentConfig = LocalEnvironment, LocalEnvironmentConfig


@pytest.fixture(autouse=True)
def _cleaned():
    yield
    while _made:
        _made.pop().cleanup()
