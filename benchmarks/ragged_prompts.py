"""Prompts of different lengths: how often a sample of a batch is not what it is when it is run alone.

    python -m benchmarks.ragged_prompts

Rows of a matrix product may be rounded differently in batches of another size, so that a draw can fall on the other
side of a boundary between two tokens, and all that follows differs. The model has random weights: 4 layers of width 64.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import thetaleap as tl
from tests import tiny_llm
from thetaleap.conditioning.prompts import prepare
from thetaleap.models.hf.llm import llada
from thetaleap.models.network import Network

NEW, BATCH, LENGTH = 32, 32, 64
SIZES: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
SOLVERS = {"one position at a time": (tl.Tweedie(tl.FixedCount()), 32), "surest first": (tl.SemiAutoregressive(), 16)}


@dataclass(frozen=True)
class Difference:
    """Of batches from the same samples alone."""

    samples: int
    differ: int
    """Samples with another token."""
    largest: float
    """Difference of two probabilities, before the first draw."""


def prompts(seed: int) -> list[list[int]]:
    """So many of 1 to 32 tokens each, which are words."""
    made = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, LENGTH - NEW + 1, (BATCH,), generator=made).tolist()
    return [torch.randint(6, 22, (size,), generator=made).tolist() for size in sizes]


def measure(model: Network, solver: tl.Tweedie | tl.SemiAutoregressive, nfe: int, rounds: int) -> Difference:
    differ, largest = 0, 0.0
    for seed in range(rounds):
        given = prompts(seed)
        ready, template = prepare(model, given, NEW)
        whole = tl.sample(ready, solver, nfe=nfe, template=template, seed=seed, batch_size=BATCH).x
        seen = ready(torch.where(template == tl.FREE, model.process.states, template), torch.tensor(1.0).double())
        for n, prompt in enumerate(given):
            one, row = prepare(model, [prompt], NEW)
            alone = tl.sample(one, solver, nfe=nfe, template=row, seed=seed, first=n).x
            differ += int(not torch.equal(alone[0], whole[n]))
            positions = torch.arange(LENGTH - NEW, LENGTH)
            mine = one(torch.where(row == tl.FREE, model.process.states, row), torch.tensor(1.0).double())
            # alone, positions that go one by one are single rows, of which products are summed in another order
            p, q = (
                torch.cat([mine.logits(position) for position in positions.split(1)]),
                seen.logits(n * LENGTH + positions),
            )
            off = (p.double().softmax(1) - q.double().softmax(1)).abs().max()
            largest = max(largest, float(off))
    return Difference(rounds * BATCH, differ, largest)


def main(rounds: int = 2, dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.bfloat16)) -> None:
    os.environ.setdefault(
        "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
    )  # virtual machines may announce more than they allow
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_llm.causal(folder, dtype=torch.float64, **SIZES)
        for dtype in dtypes:
            model = llada(folder, length=LENGTH, dtype=dtype)
            for what, (solver, nfe) in SOLVERS.items():
                found = measure(model, solver, nfe, rounds)
                count = f"{found.differ} of {found.samples} samples differ"
                print(f"{dtype}, {what}: {count}, probabilities by at most {found.largest:.1e}", flush=True)


if __name__ == "__main__":
    main()
