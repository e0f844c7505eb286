"""Sandboxes of the service that CLOCHE_URL names, one for each file of tests."""

import cloche
import pytest


@pytest.fixture(scope="session")
def client():
    with cloche.Cloche() as made:
        yield made
