"""Kimi K3 at its true widths (7168 channels, 96 heads, latent 3584), random, from a disk: bytes, bits and seconds.

python benchmarks/true_width_k3.py 2-layers --folder /a/disk --json benchmarks/results/NAME/true_width_k3_2_layers.json

`2-layers` has all 896 experts, 24 GB; `5-layers` has 32 and attention residuals in groups of 2, 14 GB. The checkpoint
is written where `--folder` says, run by processes of their own within 16 GiB, and deleted. Not in CI.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import torch

import statewell as sw
from alternate import report, row
from statewell.architectures import RELEASED
from statewell.checkpoints.coverage import writing_rules
from statewell.checkpoints.expert_disk import READERS
from statewell.checkpoints.expert_files import ExpertFiles, StoredExpert, expert_bytes
from statewell.checkpoints.families import LAYOUTS
from statewell.checkpoints.packed import expert_cache
from statewell.checkpoints.writer import Planned, write_tensors
from statewell.config.layers import AttnResSpec, LatentMoESpec, ModelConfig
from statewell.formats.families import released_layout
from statewell.formats.listing import open_listing
from statewell.models.backbone import LanguageModel
from statewell.plan.experts import experts_at, held_bytes
from statewell.plan.weights import stored_bytes

LIMIT = 16 * 2**30  # bytes of memory that a run may take
SPARE = 4 * 2**30  # bytes of disk to leave to others
PROMPT, STEPS = 3, 1
TOLD = 1.3  # of the time of reading and computing apart
# Weights are converted to float32 at each use: the processes keep what they free for the next, instead of handing it
# back and getting it again page by page. Read by the C library when a process starts.
KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(LIMIT)}


def form(name: str) -> ModelConfig:
    """The released model with its first and last layers, or five with both mixers, 32 experts and groups of two."""
    released = RELEASED["kimi-k3"]
    if name == "2-layers":
        return replace(released, name="kimi-k3-2-layers", layers=(released.layers[0], released.layers[-1]))
    layers = [released.layers[index] for index in (0, 1, 2, 3, -1)]
    fewer = [
        replace(layer, ffn=replace(layer.ffn, experts=32)) if isinstance(layer.ffn, LatentMoESpec) else layer
        for layer in layers
    ]
    return replace(released, name="kimi-k3-5-layers", layers=tuple(fewer), stream=AttnResSpec(group=2))


def write(config: ModelConfig, folder: Path) -> None:
    """A random checkpoint in the released layout, tensor by tensor."""
    family, document = released_layout(config)
    layout = LAYOUTS[family.name]
    with torch.device("meta"):
        state = LanguageModel(config).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in [name for name in shapes if ".experts." in name]:
        *leading, width = shapes.pop(name)
        shapes |= {f"{name}_packed": (*leading, width // 2), f"{name}_scale": (*leading, width // 32)}
    planned = []
    for rule in writing_rules(layout.rules(config), shapes):
        accepted = rule.stored_shapes([shapes[target] for target in rule.targets])
        kept = torch.float32 if any(map(layout.stays_fp32, rule.targets)) else torch.bfloat16
        for source, ways in zip(rule.sources, accepted, strict=True):
            planned.append(Planned(layout.written_name(source), ways[0], torch.uint8 if rule.packed else kept))
    for files in write_tensors(folder, planned, values(planned)):
        with open(files, "rb") as written:
            os.fsync(written.fileno())
    text = document["text_config"]
    assert isinstance(text, dict)
    text["dtype"] = document["dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(document))


def values(planned: list[Planned]) -> Iterator[torch.Tensor]:
    """A tensor for each of `planned`: weights near 0, 0.02 wide, norms 1. Experts are one drawn block, turned."""
    draw = torch.Generator().manual_seed(0)
    block = torch.randint(0, 256, (2**24,), generator=draw, dtype=torch.uint8)
    normal = torch.empty(2**22).normal_(0, 0.02, generator=draw)
    for number, one in enumerate(planned):
        count = one.nbytes // one.dtype.itemsize
        last = one.name.removesuffix(".weight").rsplit(".", 1)[-1]
        if last == "weight_packed":
            yield block.roll(number * 977)[:count].view(one.shape)
        elif last == "weight_scale":
            yield (118 + block.roll(number * 977)[:count] % 3).view(one.shape)
        elif last in ("A_log", "e_score_correction_bias"):
            yield torch.zeros(one.shape)
        elif "norm" in last:
            yield torch.ones(one.shape)
        else:
            turned = normal.roll(number * 977).to(one.dtype)
            yield turned.repeat(-(-count // len(turned)))[:count].view(one.shape)


def logits(model: LanguageModel, ids: torch.Tensor) -> tuple[str, list[float], dict[str, int]]:
    """The digest of all logits of a prompt and the steps after it, their seconds, and the memory's planned bytes."""
    memory, seconds = model.new_memory(1), []
    digest = hashlib.sha256()
    for part in (ids[:, :PROMPT], *ids[:, PROMPT:].split(1, dim=1)):
        begin = time.perf_counter()
        digest.update(model(part, memory).numpy().tobytes())
        seconds.append(time.perf_counter() - begin)
    spec = model.config.memory("fp32", "fp32")
    lengths = [ids.shape[1]]
    figures = {
        "planned_used": spec.used(lengths),
        "used": memory.used(),
        "planned_reserved": spec.reserved(lengths),
        "reserved": sum(tensor.nbytes for tensor in memory.tensors().values()),
    }
    return digest.hexdigest(), seconds, figures


def loaded(folder: Path, experts: str, capacity: int | None) -> tuple[LanguageModel, dict[str, int]]:
    """The model, and the bytes its weights were planned to take and take."""
    model = sw.load(folder, experts=experts, expert_cache=capacity)
    cache = expert_cache(model)
    held = sum(tensor.nbytes for tensor in model.state_dict().values())
    held += 0 if cache is None else cache.figures.capacity_bytes
    return model, {"planned": held_bytes(model.config, experts, capacity or 0), "held": held}


def in_a_process(run, *arguments) -> dict:
    """`run(*arguments)` in an interpreter of its own, with the most memory it took."""
    begin = time.perf_counter()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        found = processes.submit(measured, run, *arguments).result()
    print(f"{run.__name__} {arguments[1:-1]}: {time.perf_counter() - begin:.0f} s", flush=True)
    return found


@torch.no_grad()
def measured(run, *arguments) -> dict:
    """What `run` returns, and this process's largest resident size, mapped weights included."""
    found = run(*arguments)
    return found | {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def once(folder: Path, experts: str, capacity: int | None, ids: torch.Tensor) -> dict:
    """One pass over `ids`."""
    model, weights = loaded(folder, experts, capacity)
    digest, seconds, memory = logits(model, ids)
    cache = expert_cache(model)
    figures = None if cache is None else asdict(cache.figures)
    return {"digest": digest, "seconds": seconds, "weights": weights, "memory": memory, "cache": figures}


def against_its_parts(folder: Path, capacity: int, rounds: int, ids: torch.Tensor) -> dict:
    """A pass that reads what it misses; the same pass with nothing to read; the same bytes read and nothing else.

    The experts' bytes leave the system's cache before each reading. One pass comes before, so that all else is in
    memory.
    """
    model, weights = loaded(folder, "disk", capacity)
    cache = expert_cache(model)
    assert cache is not None
    logits(model, ids)
    missed = cache.held()
    missed_bytes = sum(map(expert_bytes, missed))
    seconds: dict[str, list[float]] = {"run": [], "compute": [], "read": []}
    for _ in range(rounds):
        cache.empty()
        forget(missed)
        before = cache.figures.read_bytes
        _, running, _ = logits(model, ids)
        assert cache.figures.read_bytes - before == missed_bytes, "the cache is too small to compare"
        digest, computing, memory = logits(model, ids)
        forget(missed)
        for name, taken in (("run", sum(running)), ("compute", sum(computing)), ("read", read_alone(missed))):
            seconds[name].append(taken)
    return {"digest": digest, "weights": weights, "memory": memory, "missed_bytes": missed_bytes, "seconds": seconds}


def forget(experts: list[StoredExpert]) -> None:
    """Let the system drop these bytes. Only these: whole files would take the mapped weights along."""
    for path in {stored.path for expert in experts for stored in expert}:
        with open(path, "rb") as opened:
            for stored in (stored for expert in experts for stored in expert if stored.path == path):
                os.posix_fadvise(opened.fileno(), stored.entry.begin, stored.entry.nbytes, os.POSIX_FADV_DONTNEED)


def read_alone(experts: list[StoredExpert]) -> float:
    """Seconds to read these experts with as many threads as the cache has, into memory used before."""
    files = ExpertFiles(stored.path for expert in experts for stored in expert)
    rooms = [memoryview(bytearray(expert_bytes(experts[0]))) for _ in range(READERS)]

    def read(reader: int) -> None:
        for expert in experts[reader::READERS]:
            files.read(expert, rooms[reader])

    with ThreadPoolExecutor(READERS) as readers:
        begin = time.perf_counter()
        for done in [readers.submit(read, reader) for reader in range(READERS)]:
            done.result()
        seconds = time.perf_counter() - begin
    files.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=["2-layers", "5-layers"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where there is room")
    parser.add_argument(
        "--write-only", action="store_true", help="leave the checkpoint to a later run, which deletes it"
    )
    parser.add_argument("--json", type=Path, help="record the result in this file")
    asked = parser.parse_args()
    config = form(asked.form)
    folder = asked.folder / config.name
    needed, free = stored_bytes(config) + SPARE, shutil.disk_usage(asked.folder).free
    if not folder.exists() and free < needed:
        parser.error(f"{asked.folder} has {free:,} bytes free, {needed:,} are needed; name another --folder.")
    os.environ.update(KEEP_FREED)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the folder goes also then
    with contextlib.ExitStack() as leaving:
        leaving.callback(shutil.rmtree, folder)
        if not folder.exists():
            folder.mkdir()
            write(config, folder)
        if asked.write_only:
            leaving.pop_all()
            return
        result = run(config, folder)
    report(result.pop("rows"), asked.json)
    print(json.dumps(result, indent=1))
    if asked.json is not None:
        asked.json.write_text(json.dumps(json.loads(asked.json.read_text()) | result, indent=1) + "\n")


def run(config: ModelConfig, folder: Path) -> dict:
    """Run and check; what was found."""
    listing = open_listing(folder)
    listing.require_whole()
    on_disk = sum(stored.entry.nbytes for stored in listing.tensors.values())
    layer = experts_at(config)[0]
    ids = torch.randint(0, config.vocab, (1, PROMPT + STEPS), generator=torch.Generator().manual_seed(1))
    roomy = layer.packed_bytes * min(160, layer.count * len(experts_at(config)))
    passes = {
        "smallest cache": in_a_process(once, folder, "disk", layer.packed_bytes * layer.at_once, ids),
        "roomy cache": in_a_process(against_its_parts, folder, roomy, 2 if layer.count <= 32 else 3, ids),
    }
    if layer.count <= 32:
        passes["packed in memory"] = in_a_process(once, folder, "packed", None, ids)
    seconds = passes["roomy cache"]["seconds"]
    middle = {name: statistics.median(taken) for name, taken in seconds.items()}
    ratio = middle["run"] / (middle["read"] + middle["compute"])
    rows = [row(f"{name}, {PROMPT + STEPS} tokens", taken) for name, taken in seconds.items()]
    checks = {
        "file bytes as planned": on_disk == stored_bytes(config),
        "weights in memory as planned": all(p["weights"]["planned"] == p["weights"]["held"] for p in passes.values()),
        "memory as planned": all(
            p["memory"]["planned_used"] == p["memory"]["used"]
            and p["memory"]["planned_reserved"] == p["memory"]["reserved"]
            for p in passes.values()
        ),
        "same logits in every pass": len({p["digest"] for p in passes.values()}) == 1,
        "within 16 GiB": all(p["peak_bytes"] <= LIMIT for p in passes.values()),
        f"run at most {TOLD} x reading and computing": ratio <= TOLD,
    }
    return {
        "rows": rows,
        "model": config.name,
        "environment": KEEP_FREED,
        "file_bytes": on_disk,
        "planned_file_bytes": stored_bytes(config),
        "run_over_read_and_compute": ratio,
        "passes": passes,
        "checks": checks,
    }


if __name__ == "__main__":
    main()
