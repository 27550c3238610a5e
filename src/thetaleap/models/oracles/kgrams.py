"""Conditionals of a chain of order k: messages over k-grams, forward and backward, with masked positions summed out.

A message is a function of the k latest values, kept as a tensor (R, b, S), b samples wide. There are two ways to lay
it out, so that a step along the chain is one product of matrices for each of the ``R = S^(k-1)`` values that the old
and the new k-gram share:

- *before* a step: the shared values, the sample, the oldest value, which the step sums out;
- *after* it: the shared values, the sample, the newest value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ._common import OnDemand, evidence, on_demand

Message = Float64[Tensor, "R b S"]
Step = Float64[Tensor, "R S S"]


@dataclass(frozen=True, eq=False)
class KGrams:
    """Forward-backward for ``P(x) = prod_l steps[l][x_{l-k}, ..., x_l]``; later positions use the last of `steps`.

    The chain starts behind k positions that are not there: the first k steps ignore their values.
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
