"""The comparison: each architecture trained on the same bytes, in the same order, for the same number of
tokens.

Owns the folder: `results.json` and `report.html`, written anew whenever a row is finished, and one run folder
per architecture and seed below. Interrupted at any moment, the same request goes on. Start with `compare`.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from statewell import __version__
from statewell.architectures import ARCHITECTURES
from statewell.bench import machine, match
from statewell.bench.budget import CompareRequest, train_config
from statewell.bench.events import Measuring, OnCompareEvent, RowBegun, RowDone, Training, ignore
from statewell.bench.report import render
from statewell.bench.results import VERSION, Machine, Results, Row, Settings, mark_spread, read, to_json
from statewell.bench.row import build_row, choose_prompts
from statewell.config.layers import ModelConfig
from statewell.config.run import TrainConfig
from statewell.errors import RequestError
from statewell.formats.files import write_atomically
from statewell.text import ByteTokenizer
from statewell.train.corpus import Corpus, open_corpus, require_windows
from statewell.train.events import CheckpointEvent, Event, NoticeEvent
from statewell.train.folder import is_run
from statewell.train.lock import run_lock
from statewell.train.run import TrainResult, train

RESULTS, REPORT = "results.json", "report.html"


def compare(request: CompareRequest, out: Path, on_event: OnCompareEvent = ignore) -> Results:
    """Train, measure and report `request` in the folder `out`, or go on with it there.

    The document is `finished` unless a signal ended a run early; that run is saved and the same call goes on
    with it. Errors: RequestError for a request that cannot be or a folder that holds something else;
    BusyError when another process works there; whatever a run or a measurement raises, with all finished rows
    kept.
    """
    matched = match.choose(request.archs, request.size, request.match)
    corpus = open_corpus(request.data, ByteTokenizer())
    on_event(NoticeEvent(message=corpus.summary))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"The folder {out} cannot be made ({error.strerror}); name another with --out.") from error
    with run_lock(out):
        before = _earlier(out)
        shared = train_config(request, matched.configs, _settled_tokens(before, request))
        require_windows(corpus, shared.length)
        results = _opened(out, before, request, _settings(request, matched, shared, corpus), on_event)
        prompts = choose_prompts(corpus, library=not request.data)
        kept = {row["arch"]: row for row in results["rows"]}
        for config in matched.configs:
            if config.architecture in kept:
                on_event(RowDone(row=kept[config.architecture], kept=True))
                continue
            runs = _train_seeds(config, shared, request, out, corpus, on_event)
            if runs is None:
                return results
            on_event(Measuring(arch=config.architecture, what="memory carried, time per token, samples"))
            row = build_row(config, runs, corpus, prompts, shared)
            _add(results, row)
            publish(out, results)
            on_event(RowDone(row=row, kept=False))
        results["finished"] = True
        publish(out, results)
    return results


def _train_seeds(
    config: ModelConfig,
    shared: TrainConfig,
    request: CompareRequest,
    out: Path,
    corpus: Corpus,
    on_event: OnCompareEvent,
) -> list[TrainResult] | None:
    """The finished runs of one architecture, seed by seed, each new or resumed; None when a signal ended one."""
    arch = config.architecture
    on_event(RowBegun(arch=arch, seeds=request.seeds))
    runs = []
    for seed in range(request.seeds):
        folder = out / arch / f"seed{seed}"
        run = train(
            config,
            replace(shared, seed=seed),
            folder,
            data=request.data,
            resume=is_run(folder),
            on_event=_passing_on(arch, seed, corpus, on_event),
        )
        if not run.finished:
            return None
        runs.append(run)
    return runs


def _passing_on(arch: str, seed: int, corpus: Corpus, on_event: OnCompareEvent) -> Callable[[Event], None]:
    def pass_on(event: Event) -> None:
        if isinstance(event, NoticeEvent):
            # every run describes the text again
            if event.message != corpus.summary:
                on_event(event)
        elif not isinstance(event, CheckpointEvent):
            on_event(Training(arch=arch, seed=seed, event=event))

    return pass_on


def _earlier(out: Path) -> Results | None:
    """The results already in `out`, or None where nothing has begun.

    Errors: RequestError when the folder holds something else.
    """
    if (out / RESULTS).exists():
        return read(out / RESULTS)
    if any(entry.name != "lock" for entry in out.iterdir()):
        raise RequestError(f"{out} holds files that are not a comparison; name another folder with --out.")
    return None


def _settled_tokens(before: Results | None, request: CompareRequest) -> int | None:
    """The tokens that the same minutes came to when this comparison began: timed again, they would differ."""
    if before is None or request.minutes is None or before["settings"]["minutes"] != request.minutes:
        return None
    return before["settings"]["tokens"]


def _opened(
    out: Path, before: Results | None, request: CompareRequest, settings: Settings, on_event: OnCompareEvent
) -> Results:
    here = _this_machine()
    if before is None:
        results = Results(
            version=VERSION,
            command=request.command,
            finished=False,
            machine=here,
            settings=settings,
            notes=[],
            rows=[],
        )
        publish(out, results)
        return results
    _require_same(out, before["settings"], settings)
    changed = [key for key in ("cpu", "cores", "threads", "torch", "statewell") if before["machine"][key] != here[key]]
    if changed and not before["finished"]:
        news = ", ".join(f"{key} {here[key]}" for key in changed)
        note = f"Continued on {here['date']} with {news}: speeds of later rows do not compare with those before."
        before["notes"].append(note)
        on_event(NoticeEvent(message=note))
    return before


def _require_same(out: Path, stored: Settings, asked: Settings) -> None:
    """Raise RequestError, naming the first difference, unless `asked` goes on with `stored`."""
    for key in Settings.__annotations__:
        if stored[key] != asked[key]:
            raise RequestError(
                f"{out} holds a comparison with {key} = {stored[key]} and this asks for {key} = {asked[key]}; "
                "ask as before to go on with it, or name another folder with --out."
            )


def _settings(request: CompareRequest, matched: match.Matched, shared: TrainConfig, corpus: Corpus) -> Settings:
    source = (
        ", ".join(str(path) for path in request.data) or f"the standard library of Python {platform.python_version()}"
    )
    return Settings(
        size=request.size,
        archs=[config.architecture for config in matched.configs],
        tokens=(shared.steps or 0) * shared.tokens_per_step,
        minutes=request.minutes,
        seeds=request.seeds,
        match=request.match,
        train_length=shared.length,
        rows_per_step=shared.rows,
        data={
            "source": source,
            "files": corpus.train.files + corpus.held_out.files,
            "train_bytes": corpus.train.tokens,
            "held_out_bytes": corpus.held_out.tokens,
            "hash": corpus.key,
        },
        changes=list(matched.changes),
    )


def _this_machine() -> Machine:
    seen = machine.look()
    return Machine(
        cpu=seen.cpu,
        cores=seen.cores,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        python=platform.python_version(),
        statewell=__version__,
        date=datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
    )


def _add(results: Results, row: Row) -> None:
    """Put `row` in its place and tell anew which rows lie within each other's spread."""
    results["rows"].append(row)
    results["rows"].sort(key=lambda row: ARCHITECTURES.index(row["arch"]))
    mark_spread(results["rows"])


def publish(out: Path, results: Results) -> None:
    """Write results.json, then the report drawn from it; each whole or not at all."""
    write_atomically(out / RESULTS, to_json(results).encode())
    write_atomically(out / REPORT, render(results).encode())
