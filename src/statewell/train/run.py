"""One training run from request to result: check, lock, build, resume, loop. The door for the command line
and `compare`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from statewell.checkpoints.native import save_tokenizer_files
from statewell.config.layers import ModelConfig
from statewell.config.run import TrainConfig
from statewell.errors import RequestError
from statewell.models import LanguageModel, build, no_decay
from statewell.models.fingerprint import fingerprint
from statewell.plan.weights import total
from statewell.text import ByteTokenizer, Tokenizer, tokenizer_from_json
from statewell.train.corpus import Corpus, open_corpus, require_windows
from statewell.train.events import NoticeEvent, OnEvent, ignore
from statewell.train.folder import (
    RunRequest,
    is_run,
    read_request,
    remove_unfinished,
    require_free,
    require_same,
    write_request,
)
from statewell.train.interrupt import stop_on_signal
from statewell.train.lock import run_lock
from statewell.train.loop import Session, save, train_until_done
from statewell.train.metrics import MetricsLog
from statewell.train.optim import build_optimizer
from statewell.train.resume import Progress, load_state, save_state


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Where a run stands. train_loss: nats per token of the last step. tokens_per_s: over all steps,
    evaluations apart.

    parameters: all of them. finished: the budget is spent; False after an interrupt, when the state is saved.
    """

    run: Path
    step: int
    tokens: int
    train_loss: float | None
    val_bits_per_byte: float | None
    tokens_per_s: float
    parameters: int
    finished: bool


def train(
    config: ModelConfig,
    train: TrainConfig,
    out: Path,
    data: tuple[Path, ...] = (),
    resume: bool = False,
    on_event: OnEvent = ignore,
    tokenizer: Tokenizer | None = None,
    start: LanguageModel | None = None,
) -> TrainResult:
    """Train the model of `config` on `data` (nothing: the standard library's source) in the run folder `out`.

    tokenizer: what reads the text and is saved with the run; None is the resumed run's own, or bytes for a new one.
    start: a model of `config` whose weights a new run begins with, instead of random ones; they are copied. resume: go
    on with the run in `out`, which must have been started with the same request. A finished run is
    returned as it stands. SIGINT and SIGTERM end the run after the step at hand, saved, with `finished`
    False. Raises RequestError and its kin for a request that cannot be, BusyError, CheckpointError,
    TrainingError.
    """
    began = None
    if resume:
        stored = read_request(out)
        tokenizer, began = tokenizer or tokenizer_from_json(stored.tokenizer, out), stored.start
    else:
        tokenizer = tokenizer or ByteTokenizer()
        require_free(out)
    if config.context is not None and train.length > config.context:
        raise RequestError(
            f"Windows of {train.length:,} tokens are past {config.name}'s limit of {config.context:,}; "
            f"use --set length={config.context}."
        )
    corpus = _open_text(config, train, data, tokenizer, on_event)
    try:
        (out / "state").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"The run folder {out} cannot be made ({error.strerror}); name another with --out."
        ) from error
    with run_lock(out):
        remove_unfinished(out)
        if not resume:
            require_free(out)  # again: another process may have been quicker to the lock
        request = RunRequest(
            model=config,
            train=train,
            data=tuple(path.resolve() for path in data),
            data_key=corpus.key,
            threads=torch.get_num_threads(),
            tokenizer=tokenizer.to_json(),
            start=began if start is None else fingerprint(start),
        )
        # the generator's state is part of the run's; the caller's is left as it was
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(train.seed)
            return _train_locked(request, corpus, tokenizer, start, out, on_event)


def _open_text(
    config: ModelConfig, train: TrainConfig, data: tuple[Path, ...], tokenizer: Tokenizer, on_event: OnEvent
) -> Corpus:
    # a released model may have more ids than its tokenizer names, but bytes with ids to spare are another model's
    bytes_for_another = tokenizer == ByteTokenizer() and config.vocab != tokenizer.vocab
    if tokenizer.vocab > config.vocab or bytes_for_another:
        raise RequestError(
            f"{config.name} has {config.vocab:,} symbols and the text is read as {tokenizer.vocab:,}; "
            "train one of the nano, tiny or small models, or one with its own tokenizer."
        )
    corpus = open_corpus(data, tokenizer)
    require_windows(corpus, train.length)
    on_event(NoticeEvent(message=corpus.summary))
    return corpus


def _train_locked(
    request: RunRequest,
    corpus: Corpus,
    tokenizer: Tokenizer,
    start: LanguageModel | None,
    out: Path,
    on_event: OnEvent,
) -> TrainResult:
    def notice(message: str) -> None:
        on_event(NoticeEvent(message=message))

    model = build(request.model, seed=request.train.seed, recompute=request.train.recompute)
    model.tokenizer = tokenizer
    if start is not None:
        model.load_state_dict(start.state_dict())
    optimizer = build_optimizer(model, no_decay(model), request.train)
    resumed = is_run(out)
    if resumed:
        stored = read_request(out)
        require_same(out, stored, request)
        if stored.threads != request.threads:
            notice(
                f"Started on {stored.threads} threads, resumed on {request.threads}: "
                "losses may differ in the last bits."
            )
        progress = load_state(out / "state", request.identity, model, optimizer, notice)
    else:
        progress = Progress()
    with MetricsLog(out / "metrics.jsonl", progress.step) as metrics:
        session = Session(
            model=model,
            optimizer=optimizer,
            config=request.train,
            corpus=corpus,
            folder=out,
            identity=request.identity,
            metrics=metrics,
            on_event=on_event,
            progress=progress,
        )
        if not resumed:
            # a state first: from the moment train.json says there is a run, it can be resumed
            save_state(session.state_folder, session.identity, model, optimizer, progress)
            save_tokenizer_files(out, tokenizer)
            write_request(out, request)
            save(session)
        if not progress.finished:
            with stop_on_signal() as stop_requested:
                train_until_done(session, stop_requested)
    return _result(out, model, progress)


def _result(out: Path, model: LanguageModel, progress: Progress) -> TrainResult:
    return TrainResult(
        run=out,
        step=progress.step,
        tokens=progress.tokens,
        train_loss=progress.train_loss,
        val_bits_per_byte=progress.val_bits_per_byte,
        tokens_per_s=progress.tokens / progress.train_s if progress.train_s else 0.0,
        parameters=total(model.config),
        finished=progress.finished,
    )
