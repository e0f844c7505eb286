"""The service under test: CLOCHE_TEST_TARGET has its JSON, as the other conformance runner takes it; CLOCHE_HOME is its home."""

import json
import os

import pytest


def pytest_addoption(parser):
    parser.addoption("--flavour", choices=["sync", "async"], default="sync")


@pytest.fixture(scope="session")
def target():
    found = json.loads(os.environ["CLOCHE_TEST_TARGET"])
    os.environ["CLOCHE_URL"] = found["gatewayUrl"]
    os.environ["CLOCHE_API_KEY"] = found["apiKey"]
    return found
