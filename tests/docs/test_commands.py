"""What the pages say, run: every command and Python block in them, the output quoted below, links, paths, options.

A fence is one of: `sh` (its `statewell` lines run in order, in one folder per page; `sh slow` only in the long form),
`python` (run in order too), `text` (right after a fence of `statewell plan` lines or of Python: their output, to the
letter). The folder holds `notes/`, some text to train on. `statewell serve` runs until it listens, on a free port, then
it is ended as a supervisor would.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

import statewell as sw
from statewell.architectures import ARCHITECTURES
from statewell.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
TOUR = sorted((ROOT / "docs" / "tour").glob("*.md"))
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
WRITTEN = [
    *sorted(ROOT.glob("*.md")),
    *(page for folder in ("docs", "benchmarks", "src", "tests") for page in sorted((ROOT / folder).rglob("*.md"))),
]
PACKAGE = Path(sw.__file__).resolve().parents[1]  # commands run elsewhere, where a relative path would lead astray
RUN = [sys.executable, "-c", "from statewell.cli.main import run; run()"]
LONGEST_S = 600
NOTE_CHARACTERS = 1000  # of each file of the text to train on, so that evaluating takes a second


@dataclass(frozen=True, kw_only=True)
class Fence:
    """A fenced block. line: of its first line in the page, from 1. slow: run in the long form only."""

    language: str
    slow: bool
    line: int
    body: str

    @property
    def commands(self) -> list[str]:
        if self.language == "text":
            return []
        lines = (line.removeprefix("$ ").strip() for line in self.body.splitlines())
        return [line for line in lines if line.startswith("statewell ")]


def fences(page: Path) -> list[Fence]:
    found, opened, body = [], None, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.startswith("```"):
            body.append(line)
        elif opened is None:
            opened, body = (line[3:].split(), number + 1), []
        else:
            words, first = opened
            language = words[0] if words else ""
            found.append(Fence(language=language, slow="slow" in words, line=first, body="\n".join(body)))
            opened = None
    assert opened is None, f"{page} has a fence that is never closed"
    return found


def with_output(page: Path) -> list[tuple[Fence, str | None]]:
    """Each fence, and the text of the `text` fence that follows it, if one does."""
    every = fences(page)
    following = [*every[1:], None]
    return [
        (fence, after.body if after is not None and after.language == "text" else None)
        for fence, after in zip(every, following, strict=True)
    ]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages_with_commands() -> list:
    """Every page once for its quick commands, and once more, marked slow, where it has others."""
    cases = []
    for page in PAGES:
        having = [fence for fence in fences(page) if fence.commands]
        if any(not fence.slow for fence in having):
            cases.append(pytest.param(page, False, id=name(page)))
        if any(fence.slow for fence in having):
            cases.append(pytest.param(page, True, id=f"{name(page)}, long", marks=pytest.mark.slow))
    return cases


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One cache of encoded text for all pages."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def folder(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    for source in sorted((ROOT / "src" / "statewell").rglob("*.py")):
        note = notes / "-".join(source.relative_to(ROOT / "src").with_suffix(".txt").parts)
        note.write_text(source.read_text(encoding="utf-8")[:NOTE_CHARACTERS], encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("page", "long"), pages_with_commands())
def test_every_command_of_a_page_runs_and_plans_print_what_is_quoted(page, long, folder, cache):
    environment = {**os.environ, "STATEWELL_CACHE": str(cache), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PACKAGE)}
    for fence, quoted in with_output(page):
        if fence.slow and not long:
            continue
        printed, plans = "", [command for command in fence.commands if command.startswith("statewell plan ")]
        for command in fence.commands:
            if command.startswith("statewell serve "):
                served(command, folder, environment)
                continue
            done = subprocess.run(
                [*RUN, *shlex.split(command, comments=True)[1:]],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=LONGEST_S,
            )
            assert done.returncode == 0, f"{name(page)}:{fence.line}: {command}\n{done.stdout}\n{done.stderr}"
            printed += done.stdout
        if quoted is not None and plans and plans == fence.commands:
            assert printed.rstrip("\n") == quoted, f"{name(page)}:{fence.line} quotes other output"


def served(command: str, folder: Path, environment: dict[str, str]) -> None:
    words = [*shlex.split(command, comments=True)[1:], "--port", "0", "--sessions", "sessions"]
    with subprocess.Popen([*RUN, *words], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.terminate()
        _, rest = process.communicate(timeout=LONGEST_S)
    assert " at http://127.0.0.1:" in line, line + rest
    assert process.returncode == 0, rest


@pytest.mark.parametrize("page", [p for p in PAGES if any(f.language == "python" for f in fences(p))], ids=name)
def test_every_python_block_of_a_page_runs_and_prints_what_is_quoted(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for fence, quoted in with_output(page):
        if fence.language != "python":
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(fence.body, f"{name(page)}:{fence.line}", "exec"), names)
        if quoted is not None:
            assert out.getvalue().rstrip("\n") == quoted, f"{name(page)}:{fence.line} quotes other output"


def test_the_readme_fits_in_two_hundred_lines_and_shows_every_verb():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 200
    for verb in typer.main.get_command(app).commands:
        assert f"statewell {verb}" in text, verb


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_readmes_table_has_the_planned_bytes(architecture):
    """One row per architecture: per token and per sequence at nano, small and, where there is one, released."""
    released = {"gpt2": "gpt2", "kimi_linear": "kimi-linear-48b-a3b", "kimi_k3": "kimi-k3"}
    models = [f"{architecture}:nano", f"{architecture}:small", *filter(None, [released.get(architecture)])]
    rows = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{architecture}` ")]
    assert len(rows) == 1
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    planned = [sw.plan(model).memory for model in models]
    figures = [f"{memory.bytes_per_token:,} / {memory.fixed_bytes:,}" for memory in planned]
    assert cells[2 : 2 + len(figures)] == figures


def test_the_tour_has_six_short_chapters_in_order_each_ending_in_one_command():
    assert [page.stem for page in TOUR] == [
        f"{number}-{architecture.replace('_', '-')}" for number, architecture in enumerate(ARCHITECTURES, start=1)
    ]
    for page in TOUR:
        assert 40 <= len(page.read_text(encoding="utf-8").splitlines()) <= 80, page.name
        commands = [command for fence in fences(page) for command in fence.commands]
        assert len(commands) == 1, page.name


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        reached = (page.parent / path).resolve() if path else page
        assert reached.exists(), f"{name(page)} links to {target}"
        assert not anchor or anchor in anchors(reached), f"{name(page)} links to {target}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"], ids=name)
def test_every_source_file_a_page_names_exists(page):
    """`memory/store.py` is one of src/statewell; capitals, as in `mixers/NAME.py`, stand for a name to choose."""
    for path in re.findall(r"`([a-z_0-9]+(?:/[\w.\-]+)*\.(?:py|toml|txt))`", page.read_text(encoding="utf-8")):
        if any(letter.isupper() for letter in path):
            continue
        places = (ROOT, ROOT / "src" / "statewell", page.parent)
        assert any((place / path).is_file() for place in places), f"{name(page)} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_option_a_page_names_exists(page):
    verbs = typer.main.get_command(app).commands.values()
    known = {option for verb in verbs for parameter in verb.params for option in parameter.opts}
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text(encoding="utf-8")):
        assert option in known | {"--help", "--version", "--debug"}, f"{name(page)} names {option}"
