"""Results of an invented comparison, shaped like real ones: the report is drawn and tested from these."""

from __future__ import annotations

import math

from statewell.bench.results import Results, Row, mark_spread

TOKENS = 204_800
CONTEXTS = (256, 1_024, 4_096, 16_384, 32_768)
# arch: (fixed bytes, bytes per token, final bits per byte, training and decode tokens/s, milliseconds per
# token)
INVENTED = {
    "gpt2": (0, 2_048, 3.071, 9_800.0, 910.0, 1.1),
    "linear_attention": (66_560, 0, 3.160, 8_300.0, 820.0, 1.2),
    "deltanet": (71_168, 0, 2.948, 5_900.0, 640.0, 1.55),
    "gated_deltanet": (72_704, 0, 2.902, 5_100.0, 610.0, 1.65),
    "kimi_linear": (55_296, 160, 2.871, 3_600.0, 430.0, 2.3),
    "kimi_k3": (57_344, 192, 2.864, 2_900.0, 350.0, 2.9),
}


def invented_row(arch: str, seeds: int = 2) -> Row:
    """One row with smooth curves; GPT-2 stops at 1,024 positions."""
    fixed, per_token, final, train_speed, decode_speed, step_ms = INVENTED[arch]
    limit = 1_024 if arch == "gpt2" else None
    curve_at = [TOKENS * i // 40 for i in range(1, 41)]
    held_at = [TOKENS * i // 10 for i in range(11)]
    runs = [final, final + 0.012][:seeds]
    return Row(
        arch=arch,
        parameters=312_448,
        active_parameters=268_032,
        compared_parameters=231_168 + len(arch) * 128,
        flops_per_token=520_000,
        val_bits_per_byte=sum(runs) / len(runs),
        val_bits_per_byte_carried=final - 0.04,
        carried_truncated_at=limit,
        val_bits_per_byte_seeds=runs,
        spread=max(runs) - min(runs) if seeds > 1 else None,
        within_spread_of=[],
        train_tokens_per_s=train_speed,
        decode_tokens_per_s=decode_speed,
        recall=None,
        memory_bytes={str(at): fixed + per_token * at for at in (1_024, 32_768, 1_048_576)},
        memory_measured=[256, 1_024] if limit else list(CONTEXTS),
        memory_curve=[{"context": 2**k, "bytes": fixed + per_token * 2**k} for k in range(8, 21)],
        beyond_model_limit=[32_768, 1_048_576] if limit else [],
        limit=limit,
        time_per_token=[
            {"context": at, "seconds": None, "note": "past its 1,024 positions"}
            if limit and at > limit
            else {"context": at, "seconds": (step_ms + per_token * at * 5e-8) / 1e3, "note": None}
            for at in CONTEXTS
        ],
        curve=[
            {
                "step": i,
                "tokens": at,
                "train_bits_per_byte": _bits(at, final) - 0.05 + 0.06 * math.sin(at * 1.7),
            }
            for i, at in enumerate(curve_at)
        ],
        val_curve=[{"tokens": at, "bits_per_byte": _bits(at, final)} for at in held_at],
        samples=[
            {
                "prompt": "def ",
                "text": "self.assertEqual(self, name):\n        if self.name is None:\n            return",
            },
            {
                "prompt": "import ",
                "text": "os\nimport sys\n\nfrom test.support import <b>os_helper</b> & co\n",
            },
        ],
        run=f"comparison/{arch}/seed0",
    )


def _bits(tokens: int, final: float) -> float:
    return (
        final
        + (8.0 - final) * math.exp(-tokens / 14_000)
        + 0.9 * math.exp(-tokens / 70_000)
        - 0.9 * math.exp(-TOKENS / 70_000)
    )


def invented_results(archs: tuple[str, ...] = tuple(INVENTED), seeds: int = 2) -> Results:
    """The whole document for the given rows."""
    rows = [invented_row(arch, seeds) for arch in archs]
    mark_spread(rows)
    return Results(
        version=1,
        command="statewell compare --quick --seeds 2",
        finished=len(rows) == len(INVENTED),
        machine={
            "cpu": "An Invented CPU",
            "cores": 2,
            "threads": 2,
            "torch": "2.13.0",
            "python": "3.11.9",
            "statewell": "0.1.0",
            "date": "2026-01-02 03:04",
        },
        settings={
            "size": "nano",
            "archs": list(INVENTED),
            "tokens": TOKENS,
            "minutes": None,
            "seeds": seeds,
            "match": "active",
            "train_length": 256,
            "rows_per_step": 8,
            "data": {
                "source": "the standard library of Python 3.11.9",
                "files": 1_812,
                "train_bytes": 12_400_000,
                "held_out_bytes": 640_000,
                "hash": "0123456789abcdef0123456789abcdef",
            },
            "changes": [],
        },
        notes=[],
        rows=rows,
    )
