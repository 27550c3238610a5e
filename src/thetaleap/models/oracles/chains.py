"""Markov chains of any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import probability_table, require, require_count
from ...core.evaluation import Conditionals
from ...core.processes import Masked, Process
from ._common import Law, OnDemand, ancestral, checked_horizon, evidence, masked, on_demand

MOST_EQUATIONS = 1024
MOST_ROUNDS = 20_000

Message = Float64[Tensor, "R b S"]
Step = Float64[Tensor, "R S S"]


@dataclass(frozen=True, eq=False)
class MarkovChain(Law):
    """``P(x) = initial[x_1, ..., x_k] prod_l transition[x_{l-k}, ..., x_l]`` under a masked process.

    An evaluation costs O(length), with powers of the matrix for k = 1; for larger k it passes messages over k-grams,
    O(length S^(k+1)) for each sample asked about.
    """

    process: Masked
    initial: Float64[Tensor, " ..."]
    transition: Float64[Tensor, " ..."]
    evaluate: Callable[[Tensor], Conditionals] = field(repr=False)

    @property
    def order(self) -> int:
        return self.initial.ndim

    @property
    def shape(self) -> tuple[int]:
        return (self.length,)

    @property
    def starts(self) -> Float64[Tensor, "length S"]:
        """The law of each position."""
        return _position_laws(self.initial, self.transition, self.length)

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        return self.evaluate(x)

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        x, k = self.tokens(x), self.order
        grams = tuple(x[:, n : self.length - k + n] for n in range(k + 1))
        return self.initial[tuple(x[:, :k].T)].log() + self.transition[grams].log().sum(1)

    def entropy(self) -> float:
        """``H(x_1, ..., x_k) + sum_l H(x_l | x_{l-k}, ..., x_{l-1})``."""
        rate = torch.special.entr(self.transition).sum(-1)
        laws = islice(_laws(self.initial, self.transition), self.length - self.order)
        return float(torch.special.entr(self.initial).sum()) + sum(float((law * rate).sum()) for law in laws)

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        def weights(position: int, columns: list[Tensor]) -> Tensor:
            short = position < self.order  # one of the first, drawn from what `initial` says about a shorter start
            table = self.initial.flatten(position + 1).sum(-1) if position + 1 < self.order else self.initial
            return (table if short else self.transition)[tuple(columns[-self.order :])]

        return ancestral(num, seed, self.length, weights)


def markov_chain(
    transition: Tensor,
    length: int,
    initial: Tensor | None = None,
    process: Process | None = None,
    horizon: float | None = None,
) -> MarkovChain:
    """A masked model of a Markov chain of order k: ``transition[i, ..., j]`` is the probability of j after i, ....

    Args:
        transition: (S,)*(k+1), k >= 1; rows over the last dimension sum to one.
        length: number of positions, at least k.
        initial: (S,)*k, the law of the first k positions; by default the stationary law of the chain of k-grams.
        process: a `Masked` process with S states; by default ``Masked(S)``.
        horizon: the time of pure noise; by default the schedule's.
    """
    p = probability_table("transition", transition, dim=-1)
    square = p.ndim >= 2 and set(p.shape) == {len(p)}
    require(square, "transition shape", tuple(p.shape), "give (S, S), or (S,)*(k+1) for order k")
    states, order = len(p), p.ndim - 1
    require_count("length", length, least=order)
    process = masked(process, states, "Markov chain")
    first = _stationary(p) if initial is None else probability_table("initial", initial)
    require(first.shape == p.shape[1:], "initial shape", tuple(first.shape), f"give {tuple(p.shape[1:])}")
    if order == 1:
        powers = accumulate([p] * (length - 1), torch.matmul, initial=torch.eye(states, dtype=torch.float64))
        evaluation = Gaps(torch.stack(list(powers)), _position_laws(first, p, length))
    else:
        evaluation = kgrams(first, p, length)
    return MarkovChain(process, checked_horizon(process, horizon), length, first, p, evaluation)


def _moved(law: Tensor, step: Step) -> Tensor:
    """The law of the next k-gram: ``p'[i_2, ..., j] = sum_i p[i, ...] T[i, ..., j]``."""
    return torch.bmm(law.reshape(len(law), -1).T.unsqueeze(1), step).view_as(law)


def _laws(initial: Tensor, transition: Tensor) -> Iterator[Tensor]:
    """The laws of the k-grams that end at position k, k + 1, ..., without end."""
    step, law = as_step(transition), initial
    while True:
        yield law
        law = _moved(law, step)


def _position_laws(initial: Tensor, transition: Tensor, length: int) -> Float64[Tensor, "length S"]:
    states, order = len(initial), initial.ndim
    first = [initial.movedim(position, 0).reshape(states, -1).sum(1) for position in range(order - 1)]
    later = islice(_laws(initial, transition), length - order + 1)
    return torch.stack(first + [law.reshape(-1, states).sum(0) for law in later])


def _stationary(transition: Tensor) -> Tensor:
    """A law of k-grams that a step of the chain does not change: ``p = pM, sum p = 1``, M being the chain's matrix."""
    if transition.ndim > 2 and transition[0].numel() > MOST_EQUATIONS:
        return _by_rounds(transition)
    states, number = len(transition), transition[0].numel()
    gram, matrix = torch.arange(number), torch.zeros((number, number), dtype=torch.float64)
    # dropping the oldest digit and adding one leads from i to the S k-grams that begin at i * S
    following = (gram * states % number).unsqueeze(1) + torch.arange(states)
    matrix.scatter_(1, following, transition.reshape(number, states))
    system = torch.cat([matrix.T - torch.eye(number, dtype=torch.float64), torch.ones(1, number)])
    target = torch.zeros(number + 1, 1, dtype=torch.float64)
    target[-1] = 1
    p = torch.linalg.lstsq(system, target).solution.flatten().clamp_min(0)
    return (p / p.sum()).view(transition.shape[1:])


def _by_rounds(transition: Tensor) -> Tensor:
    """From the uniform law by rounds of ``p <- (p + pT)/2``, where there are too many k-grams to solve for.

    Staying half of the time leaves the law the same, and lets periodic chains converge as well.
    """
    law = torch.full(transition.shape[1:], 1 / transition[0].numel(), dtype=torch.float64)
    step, off = as_step(transition), 1.0
    for _ in range(MOST_ROUNDS):
        moved = _moved(law, step)
        off = float((moved - law).abs().sum())
        law = (law + moved) / 2
        if off < 1e-13:
            return law / law.sum()
    raise ValueError(
        f"initial=None: the chain has not come to rest after {MOST_ROUNDS} steps (it still moves by {off:.1e}), so "
        "its stationary law is not known; give initial, the law of the first positions"
    )


# --- conditionals of a chain of order one


@dataclass(frozen=True, eq=False)
class Gaps:
    """Conditionals of a chain of order one, by the nearest seen positions: m to the left and n to the right,
    ``P(x_l = v | others) ∝ (T^m)[x_{l-m}, v] (T^n)[v, x_{l+n}]``."""

    powers: Float64[Tensor, "length S S"] = field(repr=False)
    starts: Float64[Tensor, "length S"] = field(repr=False)

    def __call__(self, x: Int64[Tensor, "b d"]) -> OnDemand:
        length, mask = self.starts.shape
        seen, place = x != mask, torch.arange(length)
        left = torch.where(seen, place, -1).cummax(1).values
        right = torch.where(seen, place, length).flip(1).cummin(1).values.flip(1)
        pad = torch.nn.functional.pad  # a position does not see itself
        left = pad(left, (1, 0), value=-1)[:, :-1].flatten()
        right = pad(right, (0, 1), value=length)[:, 1:].flatten()
        return OnDemand(lambda positions: self._between(x, positions, left[positions], right[positions]))

    def _between(self, x: Tensor, positions: Tensor, left: Tensor, right: Tensor) -> Float64[Tensor, "n S"]:
        """``P(value | nearest seen positions)``: the way from the left one times the way to the right one."""
        length, states = self.starts.shape
        row, position = positions // length, positions % length
        before, after = x[row, left.clamp_min(0)], x[row, right.clamp_max(length - 1)]
        way_in = self.powers[(position - left).clamp_max(length - 1), before.clamp_max(states - 1)]
        way_in = torch.where((left >= 0).unsqueeze(1), way_in, self.starts[position])
        way_out = self.powers[(right - position).clamp_max(length - 1), :, after.clamp_max(states - 1)]
        return way_in * torch.where((right < length).unsqueeze(1), way_out, 1.0)


# --- conditionals of a chain of any order


@dataclass(frozen=True, eq=False)
class KGrams:
    """Forward-backward for ``P(x) = prod_l steps[l][x_{l-k}, ..., x_l]``, with masked positions summed out; later positions
    use the last of `steps`. The chain starts behind k positions that are not there: the first k steps ignore them.

    A message is a function of the k latest values, kept as a tensor (R, b, S), b samples wide. There are two ways to lay
    it out, so that a step along the chain is one product of matrices for each of the ``R = S^(k-1)`` values that the old
    and the new k-gram share: *before* a step, the shared values, the sample, and the oldest value, which the step sums
    out; *after* it, the shared values, the sample, and the newest value.
    """

    steps: tuple[Step, ...] = field(repr=False)
    back: tuple[Step, ...] = field(repr=False)
    """`steps` with the oldest and the newest value exchanged, as products of matrices are faster without turning."""
    length: int

    def __call__(self, x: Int64[Tensor, "b d"]) -> OnDemand:
        shared, states, _ = self.steps[-1].shape
        return on_demand(self._weights, x, states, self.length * shared * states)

    def _weights(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, "b d S"]:
        """``P(x_l = v, what is seen elsewhere)`` up to a factor: what comes before times what comes after.

        The message from the left does not yet know position l, and that from the right takes it as given, so the
        position itself is left out. Messages are large, and the same memory is used over and over.
        """
        seen = evidence(x, self.steps[-1].shape[-1])
        right, result = self._from_the_right(seen), torch.empty_like(seen)
        left = torch.ones_like(right[0])  # whatever came before: the first steps ignore it
        new = torch.empty_like(left)
        for position in range(self.length):
            torch.bmm(left, self.steps[min(position, len(self.steps) - 1)], out=new)
            result[position] = right[position].mul_(new).sum(0)
            turned = before(new)
            torch.mul(turned, _per_size(seen[position], new).T.unsqueeze(2), out=left.view(turned.shape))
        return result.movedim(0, 1)

    def _from_the_right(self, seen: Float64[Tensor, "d b S"]) -> Float64[Tensor, "d R b S"]:
        """``P(what is seen after l | k-gram that ends at l)`` up to a factor, laid out as after a step."""
        shared = len(self.steps[-1])
        messages = torch.ones((len(seen), shared, *seen.shape[1:]), dtype=torch.float64)
        weighed, old = torch.empty_like(messages[0]), torch.empty_like(messages[0])
        factor = seen[-1]
        for position in range(self.length - 1, 0, -1):
            torch.mul(messages[position], factor, out=weighed)
            torch.bmm(weighed, self.back[min(position, len(self.back) - 1)], out=old)
            turned = after(old)
            messages[position - 1].view(turned.shape).copy_(turned)
            factor = _per_size(seen[position - 1], old)
        return messages


def _per_size(seen: Float64[Tensor, "b S"], message: Message) -> Float64[Tensor, "b S"]:
    """`seen` over the largest entry of the message it will meet, so that nothing underflows; zeros stay."""
    top = message.amax((0, 2)).unsqueeze(1)
    return seen / torch.where(top > 0, top, 1.0)


def before(message: Message) -> Float64[Tensor, "Q S b S"]:
    """From the layout after a step to that before the next one, with the R shared values as Q times S."""
    _, batch, states = message.shape
    return message.view(states, -1, batch, states).permute(1, 3, 2, 0)


def after(message: Message) -> Float64[Tensor, "S Q b S"]:
    """The inverse of `before`, with the R shared values as S times Q."""
    _, batch, states = message.shape
    return message.view(-1, states, batch, states).permute(3, 0, 2, 1)


def as_step(table: Tensor) -> Step:
    """A table ``[oldest, ..., newest]`` of any order, laid out for `torch.bmm`."""
    states = len(table)
    return table.reshape(states, -1, states).transpose(0, 1).contiguous()


def kgrams(initial: Tensor, transition: Tensor, length: int) -> KGrams:
    """The messages of a chain whose first k positions have the law `initial`."""
    states, order = len(initial), initial.ndim
    steps = []
    for position in range(order):
        law = initial.reshape(states**position, states, -1).sum(-1)
        given_past = (law / law.sum(1, keepdim=True)).nan_to_num()  # after what cannot happen, nothing can
        steps.append(as_step(given_past.expand(states ** (order - position), -1, -1).reshape(transition.shape)))
    steps.append(as_step(transition))
    return KGrams(tuple(steps), tuple(step.mT.contiguous() for step in steps), length)
