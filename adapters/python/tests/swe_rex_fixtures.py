"""What SWE-ReX's own tests take from their conftest.py, with a sandbox in place of a server; compat/swe-rex.ts puts it there."""

import asyncio

import pytest
from cloche_swe_rex import ClocheDeployment
from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, Command, CreateBashSessionRequest


@pytest.fixture(scope="session")
def deployment():
    made = ClocheDeployment(create={"name": "swe-rex"})
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())


@pytest.fixture
async def remote_runtime(deployment):
    yield deployment.runtime
    await deployment.runtime.close()


@pytest.fixture
async def runtime_with_default_session(remote_runtime):
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())


class _Action(BashAction):
    timeout: float | None = 5


class _Command(Command):
    timeout: float | None = 5
