"""LangChain's standard tests of a Deep Agents backend, from PyPI."""

import pytest
from cloche_deepagents import ClocheSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestClocheSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, client):
        with client.create(name="deepagents") as made:
            yield ClocheSandbox(made)
