"""LLaDA's and Dream's own samplers, written down from their descriptions: met token for token at temperature 0, and in
law above it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import thetaleap as tl
from thetaleap.conditioning.prompts import prepare
from thetaleap.models.network import Network

NEW, NOW = 8, torch.tensor(1.0, dtype=torch.float64)


def logits_of(model: Any, x: Tensor) -> Tensor:
    """(d, S), of one sequence."""
    return model(x.unsqueeze(0), NOW).logits(torch.arange(len(x))).double()


def even(room: int, steps: int) -> list[int]:
    return [room // steps + (n < room % steps) for n in range(steps)]


def llada_generate(
    model: Any,
    prompt: list[int],
    steps: int,
    block_length: int,
    scale: float = 0.0,
    temperature: float = 0.0,
    new: int = NEW,
) -> Tensor:
    """Nie et al. 2025: blocks from left to right; in each an equal number of steps, and of tokens in each step, the first
    ones taking the remainder. Draw all masked positions with Gumbel noise at the temperature, and keep the surest by the
    softmax of the logits as they are. With a scale, ``l_u + (1 + scale)(l_c - l_u)``, where l_u does not see the prompt."""
    mask, given = model.process.mask, len(prompt)
    x = torch.tensor([*prompt, *[mask] * new])
    blocks = new // block_length
    for block in range(blocks):
        end = given + (block + 1) * block_length
        for count in even(block_length, steps // blocks):
            logits = logits_of(model, x)
            if scale:
                blind = x.clone()
                blind[:given] = mask
                unconditional = logits_of(model, blind)
                pulled = unconditional + (1 + scale) * (logits - unconditional)
                logits = torch.where(torch.isinf(logits), logits, pulled)  # the mask is no token in both
            noise = torch.rand_like(logits).log().neg() ** temperature
            drawn = (logits.exp() / noise).argmax(1)
            sure = logits.softmax(1).gather(1, drawn.unsqueeze(1)).squeeze(1)
            sure[x != mask] = -math.inf
            sure[end:] = -math.inf
            chosen = sure.topk(count).indices
            x[chosen] = drawn[chosen]
    return x


def dream_generate(model: Any, prompt: list[int], steps: int, alg: str, top_p: float | None = None) -> Tensor:
    """Ye et al. 2025, at temperature 0: times from 1 to 1e-3; in each step the share 1 - s/t of the masks, rounded down,
    and all in the last; by the probability of the likeliest token, its lead, or the entropy, after top-p."""
    mask = model.process.mask
    x, times = torch.tensor([*prompt, *[mask] * NEW]), torch.linspace(1, 1e-3, steps + 1)
    for n in range(steps):
        masked = torch.nonzero(x == mask).flatten()
        p = logits_of(model, x)[masked].softmax(1)
        if top_p is not None:
            order = p.argsort(1, descending=True)
            beyond = p.gather(1, order).cumsum(1).roll(1, 1)
            beyond[:, 0] = 0
            p = torch.where(torch.zeros_like(p).scatter(1, order, beyond) > top_p, 0.0, p)
            p /= p.sum(1, keepdim=True)
        top = p.sort(1, descending=True).values
        by = {
            "maskgit_plus": top[:, 0],
            "topk_margin": top[:, 0] - top[:, 1],
            "entropy": (p * (p + 1e-10).log()).sum(1),
        }
        count = int(torch.tensor(float(len(masked))) * (1 - times[n + 1] / times[n])) if n < steps - 1 else len(masked)
        chosen = by[alg].argsort(descending=True, stable=True)[:count]  # of equals the leftmost; topk leaves it open
        x[masked[chosen]] = p.argmax(1)[chosen]
    return x


def some_prompts(count: int) -> list[list[int]]:
    made = torch.Generator().manual_seed(7)
    return [torch.randint(6, 22, (size,), generator=made).tolist() for size in (n % 7 + 1 for n in range(count))]


WORDS, REACH = 24, 6
TABLE = 1.3 * torch.randn((WORDS + 1, 2 * REACH + 1, WORDS), generator=torch.Generator().manual_seed(2)).double()


def language(length: int) -> Network:
    """A network with relative places, as language models have, in which every token matters to its neighbours: logits are
    sums of a random table over the tokens beside a position, masks included, and padding left out."""

    def network(x: Tensor, t: Tensor, valid: Tensor) -> Tensor:
        logits = torch.zeros((*x.shape, WORDS), dtype=torch.float64)
        for shift in range(-REACH, REACH + 1):
            there = torch.arange(length) + shift
            inside = valid[:, there.clamp(0, length - 1)] & (there >= 0) & (there < length)
            part = TABLE[x[:, there.clamp(0, length - 1)], shift + REACH] / (1 + abs(shift))
            logits += torch.where(inside.unsqueeze(2), part, 0.0)
        return logits

    return tl.from_network(tl.Masked(WORDS), length=length, network=network, attends=True, time_free=True)


SETTINGS = [(8, 8), (4, 8), (3, 8), (1, 8), (8, 4), (6, 4), (2, 4), (8, 2), (4, 2), (8, 1)]
"""Steps, and the length of a block."""


@pytest.mark.parametrize(("steps", "block"), SETTINGS)
@pytest.mark.parametrize("scale", [0.0, 1.5])
def test_llada_to_the_token(steps: int, block: int, scale: float) -> None:
    """Prompts of different lengths, padded on the left to be answered together; each alone by LLaDA's algorithm."""
    model, given = language(7 + NEW), some_prompts(7)
    ready, template = prepare(model, given, NEW)
    shaped = tl.tempered(tl.guided(ready, scale, template != tl.FREE) if scale else ready, 0.0)
    solver = tl.SemiAutoregressive(block_length=None if block == NEW else block)
    out = tl.sample(shaped, solver, steps=steps, template=template)
    for n, prompt in enumerate(given):
        alone = llada_generate(language(len(prompt) + NEW), prompt, steps, block, scale)
        assert out.x[n, -NEW:].tolist() == alone[-NEW:].tolist()


def test_another_order_would_be_noticed() -> None:
    """Power: in another order at most two thirds of the tokens are the same."""
    model, given = language(7 + NEW), some_prompts(7)
    ready, template = prepare(model, given, NEW)
    out = tl.sample(tl.tempered(ready, 0.0), tl.Tweedie(tl.FixedCount("even")), steps=8, template=template)
    alone = [llada_generate(language(len(prompt) + NEW), prompt, 8, 8)[-NEW:] for prompt in given]
    assert float((out.x[:, -NEW:] == torch.stack(alone)).double().mean()) < 0.67


ALGS = {"maskgit_plus": tl.Confidence, "topk_margin": tl.MarginConfidence, "entropy": tl.EntropyConfidence}


@pytest.mark.parametrize("alg", ALGS)
@pytest.mark.parametrize(("steps", "top_p"), [(8, None), (12, None), (5, 0.9), (3, 0.5), (1, None)])
def test_dream_to_the_token(alg: str, steps: int, top_p: float | None) -> None:
    for prompt in some_prompts(5):
        model = language(len(prompt) + NEW)
        template = torch.tensor([*prompt, *[tl.FREE] * NEW])
        cool = tl.tempered(model, 0.0, top_p=top_p)
        out = tl.sample(cool, tl.Tweedie(ALGS[alg](schedule="dream")), steps=steps, template=template)
        assert out.x[0].tolist() == dream_generate(model, prompt, steps, alg, top_p).tolist()


# --- in law, above temperature 0


class Little:
    """A network of four positions and three tokens, whose logits are a fixed random function of the sequence."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(11)
        self.table = 1.5 * torch.randn((4**4, 4, 3), generator=made, dtype=torch.float64)

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return self.table[(x * torch.tensor([64, 16, 4, 1])).sum(1)]


NETWORK = Little()
LITTLE = tl.from_network(tl.Masked(3), length=4, network=NETWORK, time_free=True)


def sharpened(logits: np.ndarray, temperature: float) -> np.ndarray:
    weights = np.exp((logits - logits.max()) / temperature)
    return weights / weights.sum()


def law_of(steps: int, block: int, temperature: float, by: str, tempered_rank: bool = False) -> np.ndarray:
    """All that can be drawn, with its probability; the surest by the network's own conditionals, or by the tempered."""
    law: dict[tuple[int, ...], float] = {(3,) * 4: 1.0}
    blocks = 4 // block
    for start in range(0, 4, block):
        for count in even(block, steps // blocks):
            after: dict[tuple[int, ...], float] = defaultdict(float)
            for x, p in law.items():
                logits = NETWORK(torch.tensor([x]), NOW)[0].numpy()
                masked = [at for at in range(start, start + block) if x[at] == 3]
                draw, rank = ({at: sharpened(logits[at], t) for at in masked} for t in (temperature, 1.0))
                rank = draw if tempered_rank else rank
                for values in itertools.product(range(3), repeat=len(masked)):
                    tokens = dict(zip(masked, values, strict=True))
                    sure = {at: rank[at][v] for at, v in tokens.items()}
                    if by == "entropy":
                        sure = {at: float((rank[at] * np.log(rank[at])).sum()) for at in masked}
                    if by == "margin":
                        sure = {at: float(np.sort(rank[at])[-1] - np.sort(rank[at])[-2]) for at in masked}
                    q = math.prod(draw[at][v] for at, v in tokens.items())
                    sets = [tuple(sorted(masked, key=lambda at: (-sure[at], at))[:count])]
                    if by == "random":
                        sets = list(itertools.combinations(masked, count))
                    for kept in sets:
                        y = tuple(tokens[at] if at in kept else v for at, v in enumerate(x))
                        after[y] += p * q / len(sets)
            law = after
    table = np.zeros((3,) * 4)
    for x, p in law.items():
        table[x] += p
    return table


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("steps", "block"), [(4, 4), (3, 4), (2, 4), (2, 2), (4, 2), (4, 1)])
@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
def test_llada_in_law(temperature: float, steps: int, block: int, remasking: str) -> None:
    order: Any = "random" if remasking == "random" else "confidence"
    solver, grid = tl.SemiAutoregressive(order, block), tl.grids.uniform(1.0, 0.0, steps)
    law = tl.exact.law(tl.tempered(LITTLE, temperature), solver, grid)
    np.testing.assert_allclose(law.numpy(), law_of(steps, block, temperature, remasking), atol=1e-12)


def test_the_literal_algorithm_draws_that_law() -> None:
    """Gumbel noise and all: 4000 draws of `llada_generate` by chi-square, false alarm 1e-7."""
    torch.manual_seed(0)
    law = law_of(2, 4, 0.5, "low_confidence").ravel()
    drawn = [llada_generate(LITTLE, [], 2, 4, temperature=0.5, new=4) for _ in range(4000)]
    codes = (torch.stack(drawn) * torch.tensor([27, 9, 3, 1])).sum(1)
    counts, often = np.bincount(codes.numpy(), minlength=81), law > 5 / 4000
    seen, wanted = (np.append(each[often], each[~often].sum()) for each in (counts, 4000 * law))
    assert scipy.stats.chisquare(seen, wanted).pvalue > 1e-7
    other = 4000 * law_of(2, 4, 1.0, "low_confidence").ravel()
    assert ((seen - np.append(other[often], other[~often].sum())) ** 2).sum() > 1e4, "and no other temperature"


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("by", ["confidence", "margin", "entropy"])
def test_dream_in_law(temperature: float, by: str) -> None:
    """Dream ranks by the tempered conditionals, but at temperature 0; with `untempered`, all go by the network's."""
    kinds = {"confidence": tl.Confidence, "margin": tl.MarginConfidence, "entropy": tl.EntropyConfidence}
    grid = tl.grids.uniform(1.0, 0.0, 3)
    for untempered in (False, True):
        planner = kinds[by](schedule="even", untempered=untempered)
        law = tl.exact.law(tl.tempered(LITTLE, temperature), tl.Tweedie(planner), grid)
        expected = law_of(3, 4, temperature, by, tempered_rank=not untempered)
        np.testing.assert_allclose(law.numpy(), expected, atol=1e-12)


def test_models_around_tempered_ones_know_what_was_said() -> None:
    """Constraints and guidance outside of the temperature, windows, and samples that wait, change nothing."""
    allow = torch.tensor([True, True, False])
    grid, solver = tl.grids.uniform(1.0, 0.0, 4), tl.SemiAutoregressive()
    inside = tl.exact.law(tl.tempered(tl.constrained(LITTLE, allow), 0.5), solver, grid)
    outside = tl.exact.law(tl.constrained(tl.tempered(LITTLE, 0.5), allow), solver, grid)
    torch.testing.assert_close(inside, outside, rtol=0, atol=1e-12)
    given, template = torch.tensor([True, False, False, False]), torch.tensor([1, -1, -1, -1])
    cool = tl.tempered(LITTLE, 0.0)
    greedy = [
        tl.sample(model, solver, steps=3, template=template, window=window).x.tolist()
        for model in (cool, tl.guided(cool, 0.0, given))
        for window in (None, 1, 3)
    ]
    assert all(x == greedy[0] for x in greedy)
