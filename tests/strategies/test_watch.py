import os
import subprocess
import sys
import time

from flightning.strategies.watch import _is_alive


def test_a_process_that_nobody_has_asked_for_is_not_alive():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert _is_alive(os.getpid())
    assert _is_alive(child.pid)
    child.stdin.close()  # it ends, and stays in the table of processes
    until = time.monotonic() + 60
    while _is_alive(child.pid):
        assert time.monotonic() < until
        time.sleep(0.02)
    os.kill(child.pid, 0)
    child.wait()
    assert not _is_alive(child.pid)
