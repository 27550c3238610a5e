"""A million samples of the 15-state toy by 64 steps of tau-leaping, beside a bare torch loop that does the same."""

from __future__ import annotations

import resource
import statistics
import time

import torch

import thetaleap as tl

NUM, STEPS, HORIZON, ROUNDS = 1_000_000, 64, 12.0, 3


def bare(p0: torch.Tensor, num: int, steps: int) -> torch.Tensor:
    """Tau-leaping with the exact rule, written by hand for this one model: tables by present value, one uniform to
    decide whether to jump, and one to decide where for those that do."""
    states = len(p0)
    x = torch.randint(states, (num,))
    h = HORIZON / steps
    for n in range(steps):
        t = HORIZON - n * h
        alpha = torch.exp(torch.tensor(-t, dtype=torch.float64))
        p = alpha * p0 + (1 - alpha) / states
        rates = (p.unsqueeze(0) / p.unsqueeze(1)) / states  # [present, value]
        rates.fill_diagonal_(0)
        total = rates.sum(1) * h
        jumps = torch.nonzero(torch.rand(num, dtype=torch.float64) < (-torch.expm1(-total))[x]).flatten()
        cdf = rates.cumsum(1)[x[jumps]]
        u = torch.rand(len(jumps), 1, dtype=torch.float64) * cdf[:, -1:]
        x[jumps] = torch.searchsorted(cdf, u, right=True).squeeze(1).clamp_max(states - 1)
    return x


def main() -> None:
    model = tl.load("toy15")
    law = tl.exact.law(model, tl.TauLeaping(), tl.grids.uniform(HORIZON, 0.0, STEPS))
    ratios, seconds = [], []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        out = tl.sample(model, tl.TauLeaping(), steps=STEPS, num=NUM, progress=False)
        ours = time.perf_counter() - start
        start = time.perf_counter()
        theirs = bare(model.p0, NUM, STEPS)
        ratios.append(ours / (time.perf_counter() - start))
        seconds.append(ours)
        for x in (out.x[:, 0], theirs):  # both do the job
            share = torch.bincount(x, minlength=15) / NUM
            assert float((NUM * (share - law) ** 2 / law).sum()) < 80, "samples do not follow the exact law"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"toy15, {NUM:,} samples, {STEPS} tau-leaping steps: {statistics.median(seconds):.1f} s, "
        f"{statistics.median(ratios):.2f}x the bare loop (rounds: {', '.join(f'{r:.2f}' for r in ratios)}), "
        f"peak memory of the process {peak:.2f} GiB"
    )


if __name__ == "__main__":
    main()
