"""Halton-MaskGIT: its network, its order, and LlamaGen's tokenizer, from random weights in their authors' layouts."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import thetaleap as tl
from tests.models.test_maskgit import ATTENTIVE, PICTURES, WIDTHS, all_logits, filled, saved, straight_images
from thetaleap.models.images.vqgan import vqgan
from thetaleap.planners.ordered import published_visits

CODES, CLASSES, SIDE, HIDDEN, INNER, BLOCKS, HEADS, REGISTERS = 20, 5, 4, 24, 40, 2, 3, 2
Weights = dict[str, torch.Tensor]


def layout(squares: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the published weights; the head's weights are the table of codes."""
    h = HIDDEN
    shapes: dict[str, tuple[int, ...]] = {"cls_emb.weight": (CLASSES + 1, h), "tok_emb.weight": (CODES + 1, h)}
    shapes |= {"pos_emb.weight": (SIDE**2, h), "reg_tokens.weight": (REGISTERS, h), "head.bias": (CODES + 1,)}
    shapes |= {"last_norm.norm_final.weight": (h,), "last_norm.norm_final.bias": (h,)}
    shapes |= {"last_norm.mlp.1.weight": (2 * h, h), "last_norm.mlp.1.bias": (2 * h,)}
    if squares:
        shapes |= {"in_proj.weight": (h, h, 2, 2), "out_proj.weight": (4 * h, h, 1, 1)}
    for n in range(BLOCKS):
        block = f"transformer.layers.{n}"
        shapes |= {f"{block}.mlp.1.weight": (6 * h, h), f"{block}.mlp.1.bias": (6 * h,)}
        shapes |= {f"{block}.ln1.weight": (h,), f"{block}.ln2.weight": (h,)}
        shapes |= {f"{block}.attn.{name}.weight": (h, h) for name in ("wq", "wk", "wv", "wo")}
        shapes |= {f"{block}.ff.w1.weight": (INNER, h), f"{block}.ff.w3.weight": (INNER, h)}
        shapes |= {f"{block}.ff.w2.weight": (h, INNER)}
    return shapes


def straight(weights: Weights, x: torch.Tensor, labels: list[int]) -> np.ndarray:
    """The network in numpy, position by position where positions are mixed."""
    w = {name: tensor.double().numpy() for name, tensor in weights.items()}

    def silu(z: np.ndarray) -> np.ndarray:
        return z / (1 + np.exp(-z))

    def unit(z: np.ndarray) -> np.ndarray:
        return z / np.sqrt((z**2).mean(-1, keepdims=True) + 1e-5)

    label = silu(w["cls_emb.weight"][labels])
    rows = w["tok_emb.weight"][x.numpy()] + w["pos_emb.weight"]
    side, squares = SIDE, "in_proj.weight" in w
    if squares:
        grid, side = rows.reshape(len(x), SIDE, SIDE, HIDDEN), SIDE // 2
        rows = np.zeros((len(x), side * side, HIDDEN))
        for r in range(side):
            for c in range(side):
                patch = grid[:, 2 * r : 2 * r + 2, 2 * c : 2 * c + 2]
                rows[:, r * side + c] = np.einsum("bijh,khij->bk", patch, w["in_proj.weight"])
    rows = np.concatenate([rows, np.broadcast_to(w["reg_tokens.weight"], (len(x), REGISTERS, HIDDEN))], 1)
    for n in range(BLOCKS):
        block = f"transformer.layers.{n}"
        told = label @ w[f"{block}.mlp.1.weight"].T + w[f"{block}.mlp.1.bias"]
        shift1, scale1, gate1, shift2, scale2, gate2 = (part[:, None] for part in np.split(told, 6, 1))
        h = unit(rows) * w[f"{block}.ln1.weight"] * (1 + scale1) + shift1
        q, k, v = (h @ w[f"{block}.attn.{name}.weight"].T for name in ("wq", "wk", "wv"))
        parts = [part.reshape(*part.shape[:2], HEADS, -1) for part in (unit(q), unit(k), v)]
        scores = np.einsum("bihk,bjhk->bhij", parts[0], parts[1]) / math.sqrt(HIDDEN // HEADS)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("bhij,bjhk->bihk", scores / scores.sum(-1, keepdims=True), parts[2]).reshape(h.shape)
        rows = rows + gate1 * (mixed @ w[f"{block}.attn.wo.weight"].T)
        h = unit(rows) * w[f"{block}.ln2.weight"] * (1 + scale2) + shift2
        inner = silu(h @ w[f"{block}.ff.w1.weight"].T) * (h @ w[f"{block}.ff.w3.weight"].T)
        rows = rows + gate2 * (inner @ w[f"{block}.ff.w2.weight"].T)
    rows = rows[:, : side * side]
    if squares:
        wide = rows @ w["out_proj.weight"][:, :, 0, 0].T
        whole = np.zeros((len(x), SIDE, SIDE, HIDDEN))
        for channel in range(4 * HIDDEN):
            c, i, j = channel // 4, channel // 2 % 2, channel % 2
            whole[:, i::2, j::2, c] = wide[:, :, channel].reshape(-1, side, side)
        rows = whole.reshape(len(x), SIDE**2, HIDDEN)
    told = label @ w["last_norm.mlp.1.weight"].T + w["last_norm.mlp.1.bias"]
    shift, scale = (part[:, None] for part in np.split(told, 2, 1))
    rows = unit(rows) * w["last_norm.norm_final.weight"] + w["last_norm.norm_final.bias"]
    rows = rows * (1 + scale) + shift
    return (rows @ w["tok_emb.weight"].T + w["head.bias"])[..., :CODES]


@pytest.mark.parametrize("squares", [True, False])
@pytest.mark.parametrize("tied", ["listed", "left out"])
def test_rows(squares: bool, tied: str, tmp_path: Path) -> None:
    """A training file: weights under ``model_state_dict``, with the head's, which are shared, or without."""
    weights = filled(layout(squares))
    listed = {"head.weight": weights["tok_emb.weight"]} if tied == "listed" else {}
    torch.save({"iter": 3, "global_epoch": 1, "model_state_dict": {**weights, **listed}}, tmp_path / "model.pth")
    model = tl.load(f"maskgit:{tmp_path / 'model.pth'},heads={HEADS}", dtype="float64")
    assert (model.process.states, model.classes, model.shape) == (CODES, CLASSES, (SIDE, SIDE))
    x = torch.randint(0, CODES + 1, (3, SIDE**2), generator=torch.Generator().manual_seed(1))
    labels = [2, 0, CLASSES]
    mine = all_logits(model.labelled(torch.tensor(labels)), x)
    np.testing.assert_allclose(mine, straight(weights, x, labels), atol=1e-9)


def test_what_the_file_does_not_say(tmp_path: Path) -> None:
    path = saved(tmp_path, filled(layout(squares=False)))
    with pytest.raises(ValueError, match=r"heads=None: a width of 24 is none of the published ones.*heads=12") as error:
        tl.load(f"maskgit:{path}")
    assert re.search(r"give it, as in heads=12", str(error.value))
    assert tl.load(f"maskgit:{path}", heads=12).length == SIDE**2
    with pytest.raises(ValueError, match=r"codes=7: these weights have 20"):
        tl.load(f"maskgit:{path}", heads=HEADS, codes=7)


# --- LlamaGen's tokenizer


def by_their_names(weights: Weights) -> Weights:
    """Weights of taming-transformers' decoder by the names of LlamaGen's, which counts levels from the codes."""
    named = {}
    for name, tensor in weights.items():
        for old, new in (("block_1", "0"), ("attn_1", "1"), ("block_2", "2")):
            name = name.replace(f"decoder.mid.{old}.", f"decoder.mid.{new}.")
        for level in range(len(WIDTHS)):
            name = name.replace(f"decoder.up.{level}.", f"decoder.conv_blocks.{len(WIDTHS) - 1 - level}.")
        named[re.sub(r"(conv_blocks\.\d+)\.block\.", r"\1.res.", name)] = tensor
    return named


def test_llamagen_s_tokenizer(tmp_path: Path) -> None:
    """It divides codes by their length; the encoder, and how often codes were used, are left out."""
    assert (len(WIDTHS) - 1,) == ATTENTIVE, "as theirs, at the codes alone"
    more = {"encoder.conv_in.weight": torch.zeros(2), "quantize.codebook_used": torch.zeros(5)}
    torch.save({"model": by_their_names(PICTURES) | more}, tmp_path / "vq.pt")
    codes = torch.randint(0, 20, (2, 3, 3), generator=torch.Generator().manual_seed(2))
    table = "quantize.embedding.weight"
    expected = straight_images(PICTURES | {table: F.normalize(PICTURES[table], dim=-1)}, codes)
    images = vqgan(tmp_path / "vq.pt", torch.float64).decode(codes)
    torch.testing.assert_close(images, expected, rtol=0, atol=1e-6)
    assert float((images - straight_images(PICTURES, codes)).abs().max()) > 1e-3


# --- their order


def their_order(side: int) -> list[tuple[int, int]]:
    """Cells by the first of 10000 points in each: base 2 down, base 3 along, from (1/2, 1/3) on."""

    def inverse(n: int, base: int) -> float:
        digits = []
        while n:
            digits.append(n % base)
            n //= base
        return math.fsum(digit / base ** (k + 1) for k, digit in enumerate(digits)) + 1e-12

    points = ((inverse(n, 2), inverse(n, 3)) for n in range(1, 10_001))
    return list(dict.fromkeys((int(down * side), int(along * side)) for down, along in points))


@pytest.mark.parametrize("side", [4, 16, 24])
def test_the_published_order(side: int) -> None:
    order = their_order(side)
    assert len(order) == side * side
    ranks = published_visits(side, side)
    assert [int(ranks[cell]) for cell in order] == list(range(side * side))


def test_sampling_in_the_published_order() -> None:
    planner = tl.LowDiscrepancy((4, 16), sequence="published")
    seen: list[Any] = []
    model = tl.load("ising4x16")
    tl.sample(model, tl.Tweedie(planner), steps=4, num=3, on_step=lambda moment: seen.append(moment.x.clone()))
    ranks = published_visits(4, 16).flatten()
    for x in seen[:-1]:
        written = x != model.process.mask
        counts = written.sum(1)
        assert bool((written == (ranks < counts.unsqueeze(1))).all()), "the first ones of the order, in every sample"
    with pytest.raises(ValueError, match=r"sequence='published': is an order on a grid; give its shape"):
        tl.LowDiscrepancy(sequence="published")
