"""The whole state of a run as one safetensors file per checkpoint: weights, optimiser moments, random state,
progress.

RUN/state/step-00001200.safetensors is written under another name and renamed, and the two newest are kept, so
that at every moment one good state is on disk. Resuming takes the newest that reads.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from statewell.checkpoints.files import read_tensors, save_tensors
from statewell.errors import CheckpointError

KEPT = 2
_FORMAT = "statewell-train-state"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(kw_only=True)
class Progress:
    """How far a run is; changed in place by the loop.

    elapsed_s: wall clock, evaluations included. train_s: in steps only. train_loss: nats per token of the
    last step.
    """

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    train_s: float = 0.0
    train_loss: float | None = None
    val_bits_per_byte: float | None = None
    finished: bool = False


def save_state(
    folder: Path, identity: str, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> Path:
    """Write the state of run `identity` at `progress.step` into `folder` and drop all but the KEPT newest
    before it.
    """
    tensors = {f"model.{name}": tensor for name, tensor in _model_tensors(model).items()}
    optimised: list[str] = []  # a parameter that no gradient has reached yet has no moments
    for name, parameter in model.named_parameters():
        if moments := optimizer.state.get(parameter):
            optimised.append(name)
            tensors.update({f"optimizer.{name}.{moment}": moments[moment] for moment in _MOMENTS})
    tensors["rng.torch"] = torch.get_rng_state()
    document = {
        "format": _FORMAT,
        "version": 1,
        "run": identity,
        "progress": dataclasses.asdict(progress),
        "optimised": optimised,
    }
    path = folder / f"step-{progress.step:08d}.safetensors"
    save_tensors(path, tensors, {"statewell": json.dumps(document)})
    earlier = [state for state in _states(folder) if state <= path]
    for old in earlier[:-KEPT]:
        old.unlink()
    return path


def load_state(
    folder: Path,
    identity: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    notice: Callable[[str], None],
) -> Progress:
    """Put the newest good state in `folder` back into `model`, `optimizer` and torch's generator.

    A state that is damaged or of another run is passed over with one sentence to `notice`. Raises
    CheckpointError when none is left.
    """
    states = _states(folder)
    problem = "there are none"
    for path in reversed(states):
        try:
            tensors, progress = _read(path, identity, model)
        except CheckpointError as error:
            problem = str(error)
            notice(f"{problem} The state before it is used instead.")
            continue
        _restore(tensors, model, optimizer)
        return progress
    raise CheckpointError(f"None of the {len(states)} states in {folder} can be used, the last because: {problem}")


def latest_state(folder: Path) -> Path | None:
    """The newest state file, unread, or None."""
    states = _states(folder)
    return states[-1] if states else None


def _states(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"))


def _model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Each parameter once (tied ones share their first name), and the buffers that are saved."""
    saved = model.state_dict()
    tensors: dict[str, torch.Tensor] = {name: p.detach() for name, p in model.named_parameters()}
    tensors.update({name: buffer for name, buffer in model.named_buffers() if name in saved})
    return tensors


def _read(path: Path, identity: str, model: nn.Module) -> tuple[dict[str, torch.Tensor], Progress]:
    """What `path` holds, checked in full before anything is changed."""
    tensors, metadata = read_tensors(path)
    try:
        document = json.loads(metadata["statewell"])
        if document["format"] != _FORMAT or document["run"] != identity:
            raise CheckpointError(f"{path} is a state of another run.")
        progress = Progress(**document["progress"])
        optimised: list[str] = document["optimised"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a state written by statewell train.") from error
    for name, tensor in _model_tensors(model).items():
        stored = tensors.get(f"model.{name}")
        if stored is None or stored.shape != tensor.shape or stored.dtype != tensor.dtype:
            raise CheckpointError(f"{path} does not fit this model: {name} is missing or has another shape.")
    needed = [f"optimizer.{name}.{moment}" for name in optimised for moment in _MOMENTS]
    for name in ["rng.torch", *needed]:
        if name not in tensors:
            raise CheckpointError(f"{path} is incomplete: it lacks {name}.")
    return tensors, progress


def _restore(tensors: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        for name, tensor in _model_tensors(model).items():
            tensor.copy_(tensors[f"model.{name}"])
    for name, parameter in model.named_parameters():
        if f"optimizer.{name}.step" in tensors:
            # clones: what was read may lie unaligned in one mapped file; the order of sums depends on it
            optimizer.state[parameter] = {m: tensors[f"optimizer.{name}.{m}"].clone() for m in _MOMENTS}
    torch.set_rng_state(tensors["rng.torch"].clone())
