"""Markov trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ...core.checks import is_whole, probability_table, require
from ...core.evaluation import Conditionals
from ...core.processes import Masked, Process
from ._common import Law, ancestral, checked_horizon, evidence, masked, on_demand, scaled

Message = Float64[Tensor, "b S"]


@dataclass(frozen=True, eq=False)
class Tree(Law):
    """``P(x) = root[x_0] prod_l edges[l][x_parent(l), x_l]`` under a masked process. An evaluation costs O(d S^2)."""

    process: Masked
    parents: tuple[int, ...]
    root: Float64[Tensor, " S"]
    edges: Float64[Tensor, "d S S"]

    @property
    def children(self) -> list[list[int]]:
        result: list[list[int]] = [[] for _ in self.parents]
        for position, parent in enumerate(self.parents[1:], 1):
            result[parent].append(position)
        return result

    def __call__(self, x: Int64[Tensor, "b d"], t: Float64[Tensor, "*b"]) -> Conditionals:
        return on_demand(self._weights, x, self.process.states, 4 * self.length * self.process.states)

    def _weights(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, "b d S"]:
        """``P(x_l = v, what is seen elsewhere)`` up to a factor, by belief propagation: from above times from below."""
        children, seen = self.children, evidence(x, self.process.states)
        below, up = self._upward(children, seen)
        above = [self.root.expand_as(seen[0])] * self.length
        for parent, group in enumerate(children):
            others = _all_but_one(above[parent] * seen[parent], [up[child] for child in group])
            for child, message in zip(group, others, strict=True):
                above[child] = message @ self.edges[child]
        return torch.stack(above, 1) * torch.stack(below, 1)

    def _upward(self, children: list[list[int]], seen: Float64[Tensor, "d b S"]) -> tuple[list[Message], list[Message]]:
        """For each position, what is seen below it given its own value; and, itself included, given its parent's."""
        below = [torch.ones_like(seen[0])] * self.length
        up = list(below)
        for position in reversed(range(self.length)):  # children come after their parent
            for child in children[position]:
                below[position] = scaled(below[position] * up[child], 1)
            up[position] = scaled((below[position] * seen[position]) @ self.edges[position].T, 1)
        return below, up

    def log_prob(self, x: Int64[Tensor, "b d"]) -> Float64[Tensor, " b"]:
        x = self.tokens(x)
        above = x[:, list(self.parents[1:])]
        return self.root[x[:, 0]].log() + self.edges[torch.arange(1, self.length), above, x[:, 1:]].log().sum(1)

    def entropy(self) -> float:
        """``H(x_0) + sum_l H(x_l | x_parent(l))``."""
        laws, total = [self.root], float(torch.special.entr(self.root).sum())
        for parent, edge in zip(self.parents[1:], self.edges[1:], strict=True):
            total += float(laws[parent] @ torch.special.entr(edge).sum(1))
            laws.append(laws[parent] @ edge)
        return total

    def draw(self, num: int, seed: int = 0) -> Int64[Tensor, "num d"]:
        def weights(position: int, columns: list[Tensor]) -> Tensor:
            return self.edges[position][columns[self.parents[position]]] if position else self.root

        return ancestral(num, seed, self.length, weights)


def _all_but_one(own: Message, messages: list[Message]) -> list[Message]:
    """`own` times all of `messages` but one, for each of them: products from both ends, as none may be divided by."""
    after = [torch.ones_like(own)]
    for message in reversed(messages[1:]):
        after.append(scaled(after[-1] * message, 1))
    result = []
    for message in messages:
        result.append(scaled(own * after.pop(), 1))
        own = scaled(own * message, 1)
    return result


def tree(
    parents: Sequence[int], root: Tensor, edges: Tensor, process: Process | None = None, horizon: float | None = None
) -> Tree:
    """A masked model of a Markov tree: each position depends on its parent, and on the others through it.

    Args:
        parents: ``parents[l] < l`` is the parent of position l; ``parents[0]`` is -1, as position 0 is the root.
        root: (S,), the law of position 0.
        edges: (d, S, S), where ``edges[l][i, j]`` is the probability that position l is j if its parent is i
            (``edges[0]`` is not used); or one table (S, S) for all.
        process: a `Masked` process with S states; by default ``Masked(S)``.
        horizon: the time of pure noise; by default the schedule's.
    """
    whole = isinstance(parents, Sequence) and all(is_whole(parent) for parent in parents)
    require(whole, "parents", parents, "give the number of each position's parent, as in [-1, 0, 0]")
    ancestry = tuple(int(parent) for parent in parents)
    require(len(ancestry) > 0 and ancestry[0] == -1, "parents", ancestry[:1], "position 0 is the root; begin with -1")
    for n, parent in enumerate(ancestry[1:], 1):
        require(0 <= parent < n, f"parents[{n}]", parent, f"give a position before it, 0 to {n - 1}")
    first = probability_table("root", root)
    require(first.ndim == 1, "root shape", tuple(first.shape), "give (S,)")
    states, length = len(first), len(ancestry)
    shapes = [(states, states), (length, states, states)]
    got = tuple(edges.shape) if isinstance(edges, Tensor) else type(edges).__name__
    require(got in shapes, "edges shape", got, f"give one table {shapes[0]} or one for each position, {shapes[1]}")
    tables = edges.expand(shapes[1]).clone()
    tables[0] = 1 / states
    process = masked(process, states, "tree")
    edges = probability_table("edges", tables, dim=-1)
    return Tree(process, checked_horizon(process, horizon), length, ancestry, first, edges)
