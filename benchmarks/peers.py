"""What a step costs outside the network: ours beside flow_matching, bionemo-moco and diffusers, in one thread.

All draw from the same fixed logits, float32 (B, d, S). Nobody pays for the network: theirs is a tensor that is there
already (as probabilities for flow_matching, which wants these, and with a column for the mask where they count it as a
value); ours is a trunk that gives the numbers of the rows and a head that looks them up, and the time spent in the two
is taken off.

Timed are, of theirs, the calls that their documentation shows for one step, and nothing else of a run:

- flow_matching: ``MixtureDiscreteEulerSolver.sample`` over a `time_grid` of so many steps, mask as source;
- bionemo-moco: ``MDLM.step``, ``MDLM.step_confidence`` and ``MDLM.step_self_path_planning``;
- diffusers: ``AmusedScheduler.step``, and ``BlockRefinementScheduler.step`` at temperature 1, one block.

Of ours, it is all of ``sample(..., steps=n)``, start and finish included, over n. A step of `ExponentialTrapezoidal`
and of `Trapezoidal` is two evaluations. Where a step of theirs takes a second, only a few from the middle of a run are
timed, with half of the positions masked; if flow_matching's last is among them it is a cheaper one, which flatters
it. All
is processor time of the one thread. All run in turn, round after round, so that each finds the caches full of what
another has left there, as it would after a network. Verdicts go by medians over rounds; the fastest round, on this side
and on theirs, is printed beside them.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import thetaleap as tl
from thetaleap.solvers.base import Solver

from .free_network import FreeNetwork

OURS: dict[str, Solver] = {
    "Tweedie()": tl.Tweedie(),
    "Tweedie(FixedCount())": tl.Tweedie(tl.FixedCount()),
    "Multistep()": tl.Multistep(),
    "ExponentialTrapezoidal()": tl.ExponentialTrapezoidal(),
    "Trapezoidal()": tl.Trapezoidal(),
}
OUT = Path("runs") / "peers"


@dataclass(frozen=True)
class Setting:
    """One comparison; `timed` is how many of the `steps` of a peer are timed, None for all of them."""

    length: int
    states: int
    batch: int
    steps: int
    target: float
    rounds: int
    timed: int | None = None

    def __str__(self) -> str:
        return f"d={self.length} S={self.states} B={self.batch}, {self.steps} steps"

    @property
    def moments(self) -> range:
        """The steps that are timed, from the middle of the run."""
        timed = self.timed or self.steps
        first = (self.steps - timed) // 2
        return range(first, first + timed)

    def start(self, mask: int) -> Tensor:
        """All masks, or half of them where only the middle is timed."""
        x = torch.full((self.batch, self.length), mask)
        if self.timed is not None:
            x[:, ::2] = torch.arange(self.batch * self.length).view(self.batch, -1)[:, ::2] % self.states
        return x


SETTINGS = (
    Setting(64, 32, 64, 64, target=5, rounds=15),
    Setting(64, 32, 64, 16, target=5, rounds=15),
    Setting(1024, 50257, 1, 64, target=30, rounds=2, timed=2),
    Setting(1024, 50257, 1, 16, target=30, rounds=2, timed=2),
)

Run = Callable[[], float]
"""Runs a sampler, and gives the seconds per step that it took outside the network."""


def our_runs(setting: Setting, logits: Tensor) -> dict[str, Run]:
    network = FreeNetwork(setting.batch, setting.length, logits.flatten(0, 1))
    return {name: lambda solver=solver: network.sample(solver, setting.steps) for name, solver in OURS.items()}


def _timed(setting: Setting, mask: int, step: Callable[[int, Tensor], Tensor]) -> float:
    """Seconds per step of ``step(n, x)``."""
    x, start = setting.start(mask), time.thread_time()
    with torch.no_grad():
        for n in setting.moments:
            x = step(n, x)
    return (time.thread_time() - start) / len(setting.moments)


def flow_matching_runs(setting: Setting, logits: Tensor) -> dict[str, Run]:
    path, solver, utils = (importlib.import_module(f"flow_matching.{part}") for part in ("path", "solver", "utils"))
    scheduler = importlib.import_module("flow_matching.path.scheduler").PolynomialConvexScheduler(n=1.0)
    probabilities = torch.nn.functional.pad(torch.softmax(logits, -1), (0, 1))

    class Constant(utils.ModelWrapper):
        def forward(self, x: Tensor, t: Tensor, **extras: Any) -> Tensor:
            return probabilities

    euler = solver.MixtureDiscreteEulerSolver(
        model=Constant(torch.nn.Identity()),
        path=path.MixtureDiscreteProbPath(scheduler=scheduler),
        vocabulary_size=setting.states + 1,
    )
    moments = setting.moments
    grid = torch.linspace(0, 1, setting.steps + 1)[moments.start : moments.stop + 1]

    def run() -> float:
        x, start = setting.start(setting.states), time.thread_time()
        euler.sample(x_init=x, step_size=None, time_grid=grid)
        return (time.thread_time() - start) / len(moments)

    return {"flow_matching Euler": run}


def moco_runs(setting: Setting, logits: Tensor) -> dict[str, Run]:
    root = "bionemo.moco"
    interpolants = importlib.import_module(f"{root}.interpolants")  # first, for its parts import each other
    prior, times, noise = (
        importlib.import_module(f"{root}.{part}")
        for part in ("distributions.prior", "distributions.time", "schedules.noise.continuous_noise_transforms")
    )
    mdlm = interpolants.MDLM(
        time_distribution=times.UniformTimeDistribution(),
        prior_distribution=prior.DiscreteMaskedPrior(num_classes=setting.states + 1, mask_dim=setting.states),
        noise_schedule=noise.LogLinearExpNoiseTransform(),
    )
    wide, steps = torch.nn.functional.pad(logits, (0, 1)), setting.steps  # it writes into the mask's column
    moments = [torch.full((setting.batch,), 1 - n / steps) for n in range(steps)]
    dt, going = torch.full((setting.batch,), 1 / steps), max(1, setting.length // steps)

    def step(n: int, x: Tensor) -> Tensor:
        return mdlm.step(wide, moments[n], x, dt)

    def confidence(n: int, x: Tensor) -> Tensor:
        return mdlm.step_confidence(wide, x, n, steps, num_tokens_unmask=going)

    def planned(n: int, x: Tensor) -> Tensor:
        return mdlm.step_self_path_planning(wide, x, moments[n], n, steps)

    named = {"MDLM": step, "MDLM, confidence": confidence, "MDLM, path planning": planned}
    return {f"bionemo-moco {name}": lambda f=f: _timed(setting, setting.states, f) for name, f in named.items()}


def diffusers_runs(setting: Setting, logits: Tensor) -> dict[str, Run]:
    schedulers = importlib.import_module("diffusers.schedulers")
    amused = schedulers.AmusedScheduler(mask_token_id=setting.states, masking_schedule="linear")
    amused.set_timesteps(setting.steps)
    blocks = schedulers.BlockRefinementScheduler(block_length=setting.length, num_inference_steps=setting.steps)
    blocks.set_timesteps(setting.steps)

    def confidence(n: int, x: Tensor) -> Tensor:
        return amused.step(logits, int(amused.timesteps[n]), x).prev_sample

    def refine(n: int, x: Tensor) -> Tensor:
        return blocks.step(logits, n, x, mask_token_id=setting.states, temperature=1.0).prev_sample

    named = {"Amused": confidence, "BlockRefinement": refine}
    return {f"diffusers {name}": lambda f=f: _timed(setting, setting.states, f) for name, f in named.items()}


def measure(setting: Setting) -> list[tuple[str, str, float, float]]:
    """Whose, which, and milliseconds per step: the median and the least of the rounds, in which all run in turn."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((setting.batch, setting.length, setting.states), generator=generator)
    ours = our_runs(setting, logits)
    theirs: dict[str, Run] = {}
    for make in (flow_matching_runs, moco_runs, diffusers_runs):
        theirs |= make(setting, logits)
    taken: dict[str, list[float]] = {name: [] for name in [*ours, *theirs]}
    for name, run in [*ours.items(), *theirs.items()] * (setting.rounds + 1):
        taken[name].append(1e3 * run())
    # the first round warms up
    return [
        ("ours" if name in ours else "theirs", name, statistics.median(ms[1:]), min(ms[1:]))
        for name, ms in taken.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="?", choices=["small", "large", "all"], default="all")
    which = parser.parse_args().which
    torch.set_num_threads(1)
    torch.manual_seed(0)
    OUT.mkdir(parents=True, exist_ok=True)
    with open(OUT / f"{which}.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["length", "states", "batch", "steps", "whose", "sampler", "ms_per_step", "least"])
        for setting in SETTINGS:
            if which != "all" and (which == "large") != (setting.timed is not None):
                continue
            found = measure(setting)
            best, fastest = min((ms, name) for whose, name, ms, _ in found if whose == "theirs")
            quickest = min(least for whose, _, _, least in found if whose == "theirs")
            print(f"\n{setting}: ms per step outside the network, and how much below the others' fastest, {fastest}")
            for whose, name, ms, least in found:
                verdict = "" if whose == "theirs" else "reached" if best >= setting.target * ms else "MISSED"
                beside = f"(fastest rounds {least:.3f}, {quickest / least:.1f}x)"
                print(f"  {name:34} {ms:10.3f}   {best / ms:8.1f}x {verdict:8} {beside}", flush=True)
                figures = [f"{ms:.4f}", f"{least:.4f}"]
                table.writerow([setting.length, setting.states, setting.batch, setting.steps, whose, name, *figures])
            print(f"  target: {setting.target:g}x")


if __name__ == "__main__":
    main()
