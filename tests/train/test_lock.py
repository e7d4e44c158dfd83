import os
import subprocess
import sys

import pytest

from statewell.errors import BusyError
from statewell.train.lock import run_lock


def test_a_second_holder_is_refused_with_the_number_of_the_first(tmp_path):
    with run_lock(tmp_path), pytest.raises(BusyError, match=f"in use by process {os.getpid()};"):
        run_lock(tmp_path).__enter__()


def test_a_lock_is_free_again_after_its_holder(tmp_path):
    for _ in range(2):
        with run_lock(tmp_path):
            pass


def test_a_killed_process_leaves_no_lock(tmp_path):
    code = (
        "import sys; from pathlib import Path; from statewell.train.lock import run_lock\n"
        f"with run_lock(Path({str(tmp_path)!r})): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=f"process {other.pid};"):
            run_lock(tmp_path).__enter__()
        other.kill()
        other.wait()
    with run_lock(tmp_path):
        pass
