"""Inspect's own conformance checks of a sandbox, from PyPI."""

import pytest_asyncio
from cloche_inspect import ClocheSandboxConfig, ClocheSandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def made():
    found = await ClocheSandboxEnvironment.sample_init("self-check", ClocheSandboxConfig(), {})
    yield found["default"]
    await ClocheSandboxEnvironment.sample_cleanup("self-check", None, found, False)


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox_env(made):
    return made
