import json
import subprocess
import sys

import pytest

from tests.programs import ROOT, environment


def measure(*arguments):
    command = [sys.executable, "-m", "benchmarks.many_clients", "--only", *arguments]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_ten_thousand_clients_with_state_fit_into_three_gigabytes():
    figures = measure("state", "disk")
    assert figures["parameters"] > 1.5e6
    assert figures["clients with state"] >= 500
    assert figures["states on disk GiB"] > 3
    assert figures["peak GiB"] < 3


@pytest.mark.slow
def test_a_hundred_thousand_clients_are_set_up_and_train():
    figures = measure("round", "100000", "10")
    assert figures["peak GiB"] < 2
