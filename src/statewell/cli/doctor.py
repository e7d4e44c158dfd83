"""`statewell doctor`: what runs here, on which kernels and why, and a proof that it computes what it says."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import typer

from statewell.cli.terminal import JsonFlag, print_json, stderr
from statewell.config.numbers import format_bytes

if TYPE_CHECKING:
    from statewell.bench.machine import Machine
    from statewell.bench.proof import Proof
    from statewell.kernels.registry import Choice

EXAMPLE = "statewell doctor --json"


def doctor(json: JsonFlag = False) -> None:
    """What runs here: kernels chosen and refused, cores, free memory, and a proof for all six.

    Ends with exit code 1 when a claim of the proof fails.
    """
    import torch

    from statewell.bench.machine import look
    from statewell.kernels.registry import explain, handed_on, instruction_sets

    machine, choices, compiled = look(), explain(), instruction_sets()
    threads = torch.get_num_threads()
    if not json:
        lines = [
            f"Python {platform.python_version()}, torch {torch.__version__}",
            *describe(machine, threads),
            *kernel_lines(choices),
            *(f"kernels: cpu leaves {forms} of {op} to reference" for op, forms in handed_on().items()),
            *compiled_lines(compiled),
        ]
        typer.echo("\n".join(lines))
    proofs = run_proof()
    ok = all(proof.ok for proof in proofs)
    if json:
        print_json(
            {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "machine": machine_json(machine, threads),
                "kernels": [choice_json(choice) for choice in choices],
                "handed_on": handed_on(),
                "instruction_sets": list(compiled),
                "proof": [vars(proof) for proof in proofs],
                "ok": ok,
            }
        )
    else:
        typer.echo("\n".join(proof_lines(proofs)))
    if not ok:
        raise typer.Exit(1)


def run_proof() -> list[Proof]:
    """Every row of the proof, with a progress bar on stderr."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from statewell.bench.proof import count, prove

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    proofs = []
    with Progress(*columns, console=stderr(), transient=True) as progress:
        task = progress.add_task("proof", total=count())
        for proof in prove():
            proofs.append(proof)
            progress.update(task, advance=1, description=f"proof: {proof.architecture}")
    return proofs


def describe(machine: Machine, threads: int) -> list[str]:
    """The computer as lines for a person."""
    lines = [f"{machine.cpu}: {_many(machine.cores, 'core')}, torch uses {_many(threads, 'thread')}"]
    if machine.free_bytes is None or machine.total_bytes is None:
        lines.append("memory: unknown, this system does not say")
    else:
        limit = ", limited by this process's control group" if machine.limited_by_group else ""
        lines.append(f"memory: {format_bytes(machine.free_bytes)} free of {format_bytes(machine.total_bytes)}{limit}")
    if machine.instructions is not None:
        lines.append(f"instructions: {' '.join(machine.instructions) or 'none beyond the base set'}")
    if machine.bf16 is False:
        lines.append(BF16_SENTENCE)
    return lines


BF16_SENTENCE = (
    "This CPU has no bf16 instructions: weights may be stored in bf16, matrix products run in fp32, because "
    "bf16 products without instructions are about 100 times slower."
)


def kernel_lines(choices: tuple[Choice, ...]) -> list[str]:
    """Per backend the operations it runs, then every refusal with the operations it is about."""
    runs: dict[str, list[str]] = {}
    refused: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        runs.setdefault(choice.backend, []).append(choice.op)
        for refusal in choice.refusals:
            refused.setdefault((refusal.backend, refusal.reason), []).append(choice.op)
    lines = [f"kernels: {backend} runs {', '.join(ops)}" for backend, ops in runs.items()]
    return lines + [
        f"kernels: {backend} refused {', '.join(ops)}: {reason}" for (backend, reason), ops in refused.items()
    ]


def compiled_lines(compiled: tuple[str, ...]) -> list[str]:
    """The instruction set of the compiled kernels and those it was preferred to; nothing without them."""
    if not compiled:
        return []
    others = f", {', '.join(compiled[1:])} could" if compiled[1:] else ""
    return [f"kernels: cpu computes with {compiled[0]}{others}"]


def proof_lines(proofs: list[Proof]) -> list[str]:
    """One line per claim, with its largest error; every failure by itself."""
    lines = ["proof (float64, random weights, nano):"]
    for name in dict.fromkeys(proof.name for proof in proofs):
        rows = [proof for proof in proofs if proof.name == name]
        failures = [proof for proof in rows if not proof.ok]
        sign, error = ("FAILED", "") if failures else ("ok    ", f", {_largest_error(rows)}")
        passed = f"{len(rows) - len(failures)} of {len(rows)} architectures"
        lines.append(f"  {sign} {name.replace('_', ' ')}: {passed}{error}")
        lines += [f"         {proof.architecture}: {_failure(proof)}" for proof in failures]
    return lines


def _largest_error(rows: list[Proof]) -> str:
    largest = max(proof.error or 0.0 for proof in rows)
    return f"largest error {largest:.2g} of {rows[0].limit:g} allowed" if rows[0].limit else "exact"


def _failure(proof: Proof) -> str:
    if proof.error is None:
        return proof.reason
    allowed = f"at most {proof.limit:g}" if proof.limit else "none"
    return f"error {proof.error:.2g}, {allowed} is allowed"


def machine_json(machine: Machine, threads: int) -> dict[str, object]:
    """The computer with its threads, ready for JSON."""
    return {**vars(machine), "bf16": machine.bf16, "threads": threads}


def choice_json(choice: Choice) -> dict[str, object]:
    """One operation's backend and the refusals before it, ready for JSON."""
    refusals = [refusal._asdict() for refusal in choice.refusals]
    return {"op": choice.op, "backend": choice.backend, "refusals": refusals}


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
