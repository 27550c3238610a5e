"""Do second candidates pay? Exact sampling in rounds, where a part of the window follows the guess next in line.

A round evaluates `window` states of a sample: a chain of guesses, or a shorter chain and a branch. The branch leaves the
chain at its most doubtful guess, the one whose race was closest, takes the value that came second there, and goes on.
`python -m benchmarks.candidates [NUM] [MODEL ...]` prints rounds and evaluations by how much of the window is the
branch's, in random order. States are guessed as by `core.answers`, without its corrections: with the answer of the state that
was last evaluated as number k.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np
import torch

import thetaleap as tl
from thetaleap.core.evaluation import Denoiser

MODELS = ("chain64", "ising4x16", "mixture32", "sums")
WINDOWS = (8, 16, 32)
SHARES = (0.0, 0.25, 0.5)


@dataclass
class Run:
    """One sample of a model, one position after the other."""

    model: Denoiser
    seed: int
    known: dict[bytes, np.ndarray] = field(default_factory=dict)
    """What was answered about a state: ``log p`` of every value at every position."""
    last: dict[int, np.ndarray] = field(default_factory=dict)
    """The last answer to a state with so many positions drawn."""
    evaluations: int = 0

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        self.order = draw.permutation(self.model.length)
        self.gumbel = draw.gumbel(size=(self.model.length, self.model.process.states))

    def first_two(self, k: int, answer: np.ndarray) -> tuple[int, int, float]:
        """Which value wins at draw `k`, which is second, and how far behind."""
        position = self.order[k]
        score = answer[position] + self.gumbel[position]
        second, first = np.argsort(score)[-2:]
        return int(first), int(second), float(score[first] - score[second])

    def after(self, x: np.ndarray, k: int, value: int) -> np.ndarray:
        x = x.copy()
        x[self.order[k]] = value
        return x

    def stale(self, k: int) -> np.ndarray:
        return self.last[max(n for n in self.last if n <= k)]

    def chain(self, x: np.ndarray, k: int, size: int) -> tuple[list[tuple[int, np.ndarray]], list[tuple[int, float]]]:
        """Up to `size` states from `x`, where `k` are drawn, by stale answers; and the second value at each, and how far
        behind it is."""
        states, seconds = [], []
        while len(states) < size and k < self.model.length:
            states.append((k, x))
            first, second, margin = self.first_two(k, self.stale(k))
            seconds.append((second, margin))
            x, k = self.after(x, k, first), k + 1
        return states, seconds

    def ask(self, states: list[tuple[int, np.ndarray]]) -> None:
        """Evaluate those that were not: one round."""
        new = {x.tobytes(): (k, x) for k, x in states if x.tobytes() not in self.known}
        self.evaluations += len(new)
        batch = torch.from_numpy(np.stack([x for _, x in new.values()]))
        t = torch.tensor(self.model.horizon / 2, dtype=torch.float64)
        logits = self.model(batch, t).logits(torch.arange(batch.numel()))
        answers = torch.log_softmax(logits.double(), 1).view(*batch.shape, -1).numpy()
        for (k, x), answer in zip(reversed(new.values()), answers[::-1], strict=True):  # the chain's own come last
            self.known[x.tobytes()] = self.last[k] = answer

    def rounds(self, window: int, share: float) -> int:
        """Draw the sample; gives the rounds that it took."""
        mask = self.model.process.mask
        assert mask is not None
        x, k, rounds, branch = np.full(self.model.length, mask), 0, 0, int(window * share)
        while k < self.model.length:
            answer = self.known.get(x.tobytes())
            if answer is not None:
                x, k = self.after(x, k, self.first_two(k, answer)[0]), k + 1
                continue
            if not self.last:
                states = [(k, x)]
            else:
                states, seconds = self.chain(x, k, window - branch)
                if branch and len(states) > 1:
                    least = int(np.argmin([margin for _, margin in seconds[:-1]]))
                    at, before = states[least]
                    states += self.chain(self.after(before, at, seconds[least][0]), at + 1, branch)[0]
            self.ask(states)
            rounds += 1
        return rounds


def main() -> None:
    given = sys.argv[1:]
    num, names = int(given[0]) if given else 32, given[1:] or MODELS
    torch.set_num_threads(1)
    for name in names:
        model = tl.load(name)
        for window in WINDOWS:
            told = []
            for share in SHARES:
                runs = [Run(model, seed) for seed in range(num)]
                with torch.no_grad():
                    rounds = np.array([run.rounds(window, share) for run in runs])
                spent = np.mean([run.evaluations for run in runs])
                told.append(f"{share:.0%} {rounds.mean():.2f} ± {rounds.std() / num**0.5:.2f} / {spent:.0f}")
            print(f"{name}, window {window}, branch: rounds / evaluations: " + "; ".join(told), flush=True)


if __name__ == "__main__":
    main()
