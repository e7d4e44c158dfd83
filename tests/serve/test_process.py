"""`statewell serve` as a process of its own: how it starts, drains and dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

import statewell as sw
from statewell.cli.main import app
from statewell.errors import RequestError

RUN = [sys.executable, "-c", "from statewell.cli.main import run; run()", "serve", "gated_deltanet:nano", "--port", "0"]
PACKAGE = Path(sw.__file__).resolve().parents[1]
ASK = {"model": "gated_deltanet:nano", "prompt": "def main(", "temperature": 0}


def start(folder: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """A process that listens, and its address."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*RUN, "--sessions", str(folder), *words], stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert " at http://127.0.0.1:" in line, line + process.stderr.read()
    return process, line.split(" at ")[1].split("/v1")[0]


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_on_sigterm_what_runs_is_finished_and_the_process_ends_with_0(tmp_path):
    process, url = start(tmp_path)
    with httpx.stream("POST", f"{url}/v1/completions", json=ASK | {"max_tokens": 300, "stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] in ("length", "stop")
    assert end(process) == (0, "")


def test_an_address_that_others_can_reach_needs_a_key():
    done = CliRunner().invoke(app, ["serve", "gated_deltanet:nano", "--host", "0.0.0.0"])
    assert isinstance(done.exception, RequestError)
    assert "0.0.0.0 can be reached from other machines; give --api-key-file" in str(done.exception)


@pytest.mark.slow
def test_saved_sessions_outlive_kill_9_in_the_middle_of_saving(tmp_path):
    process, url = start(tmp_path)
    answer = httpx.post(f"{url}/v1/completions", json=ASK | {"max_tokens": 4}, timeout=60).json()
    first = httpx.post(f"{url}/v1/sessions", json={"name": "first", "response_id": answer["id"]}, timeout=60).json()
    made: list[str] = []

    def fork() -> None:
        while True:
            try:
                httpx.post(f"{url}/v1/sessions/first/fork", json={"name": f"n{len(made)}"}, timeout=60)
            except httpx.HTTPError:
                return
            made.append(f"n{len(made)}")

    busy = threading.Thread(target=fork)
    busy.start()
    while len(made) < 20:
        pass
    process.kill()
    busy.join()
    end(process)
    process, url = start(tmp_path)
    names = [one["name"] for one in httpx.get(f"{url}/v1/sessions", timeout=60).json()["data"]]
    assert {"first", *made} <= {*names}
    for name in names:
        restored = httpx.post(f"{url}/v1/sessions/{name}/restore", timeout=60).json()
        assert restored["text"] == first["text"]
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 0
