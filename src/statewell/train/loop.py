"""The loop: steps, evaluations and saves until the budget is spent. `run.py` builds what a Session holds."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from statewell.checkpoints.native import save_model
from statewell.config.run import TrainConfig
from statewell.errors import TrainingError
from statewell.models import LanguageModel
from statewell.train import diagnose
from statewell.train.corpus import Corpus
from statewell.train.data import batch_at
from statewell.train.evaluate import evaluate
from statewell.train.events import CheckpointEvent, EvalEvent, OnEvent, StepEvent
from statewell.train.loss import mean_nats
from statewell.train.metrics import MetricsLog
from statewell.train.optim import clip_gradients, gradient_norm, learning_rate, set_learning_rate
from statewell.train.resume import Progress, latest_state, save_state

RECENT_STEPS = 20


@dataclass(kw_only=True)
class Session:
    """One process's turn at a run. identity: hash of what the run is; a state of another run is never taken
    for ours.
    """

    model: LanguageModel
    optimizer: torch.optim.Optimizer
    config: TrainConfig
    corpus: Corpus
    folder: Path
    identity: str
    metrics: MetricsLog
    on_event: OnEvent
    progress: Progress
    clock: Callable[[], float] = time.monotonic
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    started: float = 0.0
    first_s: float = 0.0
    first_step: int = 0

    @property
    def state_folder(self) -> Path:
        return self.folder / "state"

    def start_clock(self) -> None:
        """Count from now, on top of what earlier processes spent."""
        self.first_s, self.first_step = self.progress.elapsed_s, self.progress.step
        self.started = self.clock()

    def read_clock(self) -> None:
        """Bring the progress's wall clock up to now."""
        self.progress.elapsed_s = self.first_s + self.clock() - self.started


def train_until_done(session: Session, stop_requested: Callable[[], bool]) -> bool:
    """Spend what is left of the budget; False when `stop_requested` ended it early. Either way the state is
    saved.

    Raises TrainingError where a loss, a gradient or a weight is not finite.
    """
    config, progress = session.config, session.progress
    session.start_clock()
    session.model.train()
    while spent_share(session) < 1:
        if stop_requested():
            save(session)
            return False
        event = _step(session)
        session.metrics.append(event)
        session.on_event(event)
        if spent_share(session) < 1:
            if progress.step % config.eval_every == 0:
                _evaluate(session, config.eval_tokens)
            if progress.step % config.checkpoint_every == 0:
                save(session)
            session.read_clock()
    _evaluate(session, config.final_eval_tokens)
    progress.finished = True
    save(session)
    return True


def spent_share(session: Session) -> float:
    """How much of the budget is spent, 0 to 1."""
    config, progress = session.config, session.progress
    if config.total_steps is not None:
        return min(1.0, progress.step / config.total_steps)
    assert config.minutes is not None  # one of the two is the budget
    return min(1.0, progress.elapsed_s / (60 * config.minutes))


def save(session: Session) -> None:
    """Put the run on disk: metrics, the whole state, then the model that generation reads."""
    wrong = diagnose.first_parameter_not_finite(session.model)
    if wrong is not None:
        raise _not_finite(session, f"After step {session.progress.step} the weights are not finite, first {wrong}")
    session.metrics.sync()
    path = save_state(session.state_folder, session.identity, session.model, session.optimizer, session.progress)
    save_model(session.folder, session.model)
    session.on_event(CheckpointEvent(step=session.progress.step, path=path))


def _step(session: Session) -> StepEvent:
    config, progress = session.config, session.progress
    began = session.clock()
    step = progress.step + 1
    # counted in steps, a step is trained at the share its end reaches, so that the first rate is not zero
    share = spent_share(session) if config.total_steps is None else step / config.total_steps
    rate = learning_rate(share, config)
    nats, norm = _learn(session, step, rate)

    progress.step = step
    progress.tokens += config.tokens_per_step
    progress.train_loss = nats
    session.recent_s.append(session.clock() - began)
    progress.train_s += session.recent_s[-1]
    session.read_clock()
    return StepEvent(
        step=step,
        total_steps=config.total_steps,
        share=spent_share(session),
        tokens=progress.tokens,
        loss=nats,
        gradient_norm=norm,
        learning_rate=rate,
        tokens_per_s=len(session.recent_s) * config.tokens_per_step / max(sum(session.recent_s), 1e-9),
        elapsed_s=progress.elapsed_s,
        seconds_left=_seconds_left(session),
    )


def _learn(session: Session, step: int, rate: float) -> tuple[float, float]:
    """One update of the weights; returns the loss in nats and the gradient's norm before clipping."""
    config, model = session.config, session.model
    inputs, targets = batch_at(session.corpus.train, config.seed, step - 1, config.rows, config.length)
    loss = mean_nats(model(inputs), targets)
    nats = loss.item()
    if not math.isfinite(nats):
        layer = diagnose.first_layer_not_finite(model, inputs) or "the loss itself"
        raise _not_finite(session, f"The loss of step {step} is not finite ({nats}), first in layer {layer}")
    session.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = gradient_norm(model)
    # before clipping, which would spread the one value to every gradient
    if not math.isfinite(norm.item()):
        name = diagnose.last_gradient_not_finite(model) or "the norm itself"
        raise _not_finite(session, f"The gradient of step {step} is not finite ({norm.item()}), first in {name}")
    clip_gradients(model, config.clip, norm)
    set_learning_rate(session.optimizer, rate)
    session.optimizer.step()
    return nats, norm.item()


def _seconds_left(session: Session) -> float:
    config, progress = session.config, session.progress
    if config.total_steps is None:
        assert config.minutes is not None
        return max(0.0, 60 * config.minutes - progress.elapsed_s)
    pace_s = (progress.elapsed_s - session.first_s) / (progress.step - session.first_step)
    return pace_s * (config.total_steps - progress.step)


def _evaluate(session: Session, max_tokens: int) -> None:
    config, progress = session.config, session.progress
    result = evaluate(session.model, session.corpus.held_out, config.length, max_tokens, config.rows)
    progress.val_bits_per_byte = result.bits_per_byte
    event = EvalEvent(step=progress.step, tokens=progress.tokens, val_bits_per_byte=result.bits_per_byte)
    session.metrics.append(event)
    session.on_event(event)


def _not_finite(session: Session, what: str) -> TrainingError:
    last = latest_state(session.state_folder)
    saved = f"the last good checkpoint is {last}" if last else "no checkpoint was written yet"
    return TrainingError(f"{what}; {saved}. Start a new run with a lower --set learning_rate, or a lower --set clip.")
