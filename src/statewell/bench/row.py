"""One finished row: a trained architecture's runs, measured and put into the words of `results.json`.

Trains nothing. Start with `build_row`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from statewell.bench.measure import TIME_CONTEXTS, measure, planned_bytes
from statewell.bench.results import MEMORY_CONTEXTS, CurvePoint, HeldOutPoint, MemoryPoint, Row, Sample
from statewell.checkpoints.native import load_model
from statewell.config.layers import ModelConfig
from statewell.config.run import TrainConfig
from statewell.engine.generate import generate
from statewell.engine.sampling import Sampling
from statewell.errors import TrainingError
from statewell.models import LanguageModel
from statewell.plan import weights
from statewell.plan.flops import flops_per_token
from statewell.train.corpus import Corpus
from statewell.train.evaluate import evaluate, evaluate_carried
from statewell.train.metrics import read_metrics
from statewell.train.run import TrainResult

CURVE_POINTS = 40
CURVE_CONTEXTS = tuple(2**power for power in range(8, 21))
CARRIED_TOKENS = 65_536
CARRIED_LONGEST = 8_192
SAMPLE_TOKENS = 120
SAMPLING = Sampling(temperature=0.8, seed=0)
LIBRARY_PROMPTS = ("def ", "import ", "class ")
PROMPTS = 3
PROMPT_CHARACTERS = 40


def build_row(
    config: ModelConfig, results: Sequence[TrainResult], corpus: Corpus, prompts: Sequence[str], shared: TrainConfig
) -> Row:
    """The row of `config` from its finished runs, one per seed; the first one's model is measured and asked to write.

    shared: the training of all runs; FLOPs are counted at its length.
    Errors: TrainingError when a run has no held-out figure; StatewellError when memory is not as planned.
    """
    model = load_model(results[0].run)
    measured = measure(model)
    carried = evaluate_carried(model, corpus.held_out, CARRIED_TOKENS, longest=CARRIED_LONGEST)
    figures = [_held_out(result) for result in results]
    curve, val_curve = read_curves(results[0].run)
    if val_curve:
        # the figure at the end of a run rests on more text; a curve is only one on the same windows throughout
        same = evaluate(model, corpus.held_out, shared.length, shared.eval_tokens)
        val_curve[-1]["bits_per_byte"] = same.bits_per_byte
    return Row(
        arch=config.architecture,
        parameters=weights.total(config),
        active_parameters=weights.active(config),
        compared_parameters=weights.compared(config),
        flops_per_token=flops_per_token(config, shared.length),
        val_bits_per_byte=statistics.fmean(figures),
        val_bits_per_byte_carried=carried.bits_per_byte,
        carried_truncated_at=carried.truncated_at,
        val_bits_per_byte_seeds=figures,
        spread=max(figures) - min(figures) if len(figures) > 1 else None,
        within_spread_of=[],
        train_tokens_per_s=statistics.median(result.tokens_per_s for result in results),
        decode_tokens_per_s=measured.tokens_per_s,
        recall=None,
        memory_bytes={str(context): planned_bytes(config, context) for context in MEMORY_CONTEXTS},
        memory_measured=sorted(measured.bytes),
        memory_curve=[MemoryPoint(context=at, bytes=planned_bytes(config, at)) for at in CURVE_CONTEXTS],
        beyond_model_limit=_beyond(config),
        limit=config.context,
        time_per_token=measured.times,
        curve=curve,
        val_curve=val_curve,
        samples=[write_sample(model, prompt) for prompt in prompts],
        run=str(results[0].run),
    )


def _held_out(result: TrainResult) -> float:
    if result.val_bits_per_byte is None:
        raise TrainingError(
            f"The run {result.run} ended without a held-out figure; remove it and start the comparison again."
        )
    return result.val_bits_per_byte


def _beyond(config: ModelConfig) -> list[int]:
    limit = config.context
    return [] if limit is None else sorted({at for at in (*TIME_CONTEXTS, *MEMORY_CONTEXTS) if at > limit})


def read_curves(run: Path) -> tuple[list[CurvePoint], list[HeldOutPoint]]:
    """The training curve, averaged over equal spans of steps to at most 40 points, and the held-out curve of a
    run.
    """
    entries = read_metrics(run / "metrics.jsonl")
    steps = [entry for entry in entries if entry["event"] == "step"]
    span = max(1, math.ceil(len(steps) / CURVE_POINTS))
    curve = []
    for start in range(0, len(steps), span):
        part = steps[start : start + span]
        nats = statistics.fmean(float(str(entry["loss"])) for entry in part)
        last = part[-1]
        curve.append(
            CurvePoint(
                step=int(str(last["step"])),
                tokens=int(str(last["tokens"])),
                train_bits_per_byte=nats / math.log(2),
            )
        )
    held_out = [
        HeldOutPoint(tokens=int(str(entry["tokens"])), bits_per_byte=float(str(entry["val_bits_per_byte"])))
        for entry in entries
        if entry["event"] == "eval"
    ]
    return curve, held_out


def write_sample(model: LanguageModel, prompt: str) -> Sample:
    """What the model writes after `prompt`: seeded, at temperature 0.8."""
    events = generate(model, prompt, max_tokens=SAMPLE_TOKENS, sampling=SAMPLING)
    return Sample(prompt=prompt, text="".join(event.text for event in events))


def choose_prompts(corpus: Corpus, library: bool) -> tuple[str, ...]:
    """Beginnings to write on from: Python's own where the text is the standard library, else the first words
    of held-out files.
    """
    if library:
        return LIBRARY_PROMPTS
    starts = (
        corpus.held_out.bounds[:PROMPTS].tolist()
        if corpus.held_out.files >= PROMPTS
        else corpus.held_out.bounds[:1].tolist()
    )
    raw = [bytes(corpus.held_out.ids[start : start + 4 * PROMPT_CHARACTERS].tolist()) for start in starts]
    texts = [piece.split(b"\0")[0].decode("utf-8", "ignore").lstrip() for piece in raw]
    return tuple(text[:PROMPT_CHARACTERS].split("\n")[0] for text in texts if text) or ("\n",)
