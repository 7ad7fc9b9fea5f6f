"""What the tests of damaged and resumed runs share."""

import shutil
from pathlib import Path

import pytest
from small_runs import half_trained


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return half_trained(tmp_path_factory.mktemp("runs"), "a2c")


@pytest.fixture
def run(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "runs" / "a2c"))
