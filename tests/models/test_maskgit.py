"""MaskGIT's weights as a denoiser, and its VQGAN's as a decoder of images."""

from __future__ import annotations

import math
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

import thetaleap as tl
from thetaleap.models.images import maskgit as module
from thetaleap.models.images import vqgan as decoder
from thetaleap.models.images.maskgit import MaskGIT, maskgit
from thetaleap.models.images.vqgan import CALLBACK, VQGAN, vqgan

Shapes = dict[str, tuple[int, ...]]
Weights = dict[str, Tensor]
CODES, CLASSES, SIDE, HIDDEN, INNER, BLOCKS, HEADS = 20, 5, 4, 32, 48, 2, 4
NOW = torch.tensor(0.5, dtype=torch.float64)


def layout(codes: int, classes: int, side: int, hidden: int, inner: int, blocks: int) -> Shapes:
    """Names and shapes of the public weights."""
    tokens, channels = side * side + 1, codes + classes + 2
    shapes: Shapes = {"tok_emb.weight": (channels, hidden), "pos_emb": (1, tokens, hidden), "bias": (tokens, channels)}

    def affine(name: str, *size: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = size, size[:1]

    for name in ("first_layer.0", "first_layer.4", "last_layer.0", "last_layer.4"):
        affine(name, hidden)
    for name in ("first_layer.2", "first_layer.6", "last_layer.2"):
        affine(name, hidden, hidden)
    for n in range(blocks):
        attention, perceptron = (f"transformer.layers.{n}.{part}" for part in (0, 1))
        affine(f"{attention}.norm", hidden)
        shapes[f"{attention}.fn.mha.in_proj_weight"] = (3 * hidden, hidden)
        shapes[f"{attention}.fn.mha.in_proj_bias"] = (3 * hidden,)
        affine(f"{attention}.fn.mha.out_proj", hidden, hidden)
        affine(f"{perceptron}.norm", hidden)
        affine(f"{perceptron}.fn.net.0", inner, hidden)
        affine(f"{perceptron}.fn.net.3", hidden, inner)
    return shapes


def filled(shapes: Shapes, seed: int = 0) -> Weights:
    """Random weights under which signals neither vanish nor explode."""
    generator = torch.Generator().manual_seed(seed)

    def draw(size: tuple[int, ...]) -> Tensor:
        fan = max(1, math.prod(size[1:]))
        return torch.randn(size, generator=generator) / (math.sqrt(fan) if len(size) in (2, 4) else 2)

    return {name: draw(size) for name, size in shapes.items()}


TINY = filled(layout(CODES, CLASSES, SIDE, HIDDEN, INNER, BLOCKS))


def load(path: Path, **options: Any) -> Any:
    return maskgit(path, codes=CODES, heads=HEADS, **options)


def saved(folder: Path, tensors: Weights = TINY, name: str = "model.safetensors") -> Path:
    save_file(tensors, folder / name)
    return folder / name


def straight(weights: Weights, x: Tensor, labels: list[int]) -> np.ndarray:
    """The network in numpy, with its formulas written out, at all positions and for all channels."""
    w = {name: tensor.double().numpy() for name, tensor in weights.items()}
    erf = np.vectorize(math.erf)

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: np.ndarray, eps: float) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return x * (1 + erf(x / math.sqrt(2))) / 2

    def attention(name: str, x: np.ndarray) -> np.ndarray:
        size, mixed = HIDDEN // HEADS, np.zeros_like(x)
        q, k, v = np.split(x @ w[f"{name}.in_proj_weight"].T + w[f"{name}.in_proj_bias"], 3, -1)
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = np.exp(q[:, part] @ k[:, part].T / math.sqrt(size))
            mixed[:, part] = scores / scores.sum(-1, keepdims=True) @ v[:, part]
        return linear(f"{name}.out_proj", mixed)

    out = []
    for row, label in zip(x.tolist(), labels, strict=True):
        h = w["tok_emb.weight"][[*row, CODES + 1 + label]] + w["pos_emb"][0]
        h = linear("first_layer.2", norm("first_layer.0", h, 1e-12))
        h = linear("first_layer.6", norm("first_layer.4", gelu(h), 1e-12))
        for n in range(BLOCKS):
            name = f"transformer.layers.{n}"
            h = h + attention(f"{name}.0.fn.mha", norm(f"{name}.0.norm", h, 1e-5))
            inner = gelu(linear(f"{name}.1.fn.net.0", norm(f"{name}.1.norm", h, 1e-5)))
            h = h + linear(f"{name}.1.fn.net.3", inner)
        h = norm("last_layer.4", gelu(linear("last_layer.2", norm("last_layer.0", h, 1e-12))), 1e-12)
        out.append((h @ w["tok_emb.weight"].T + w["bias"])[:-1])
    return np.stack(out)


def some_codes(num: int, seed: int = 1) -> Tensor:
    """Codes and masks."""
    return torch.randint(0, CODES + 1, (num, SIDE**2), generator=torch.Generator().manual_seed(seed))


def all_logits(model: Any, x: Tensor) -> np.ndarray:
    return model(x, NOW).logits(torch.arange(x.numel())).double().unflatten(0, x.shape).numpy()


@pytest.mark.parametrize(("dtype", "off"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_rows(dtype: torch.dtype, off: float, tmp_path: Path) -> None:
    model, x, labels = load(saved(tmp_path), dtype=dtype), some_codes(3), [0, 4, CLASSES]
    assert model.process == tl.Masked(CODES)
    facts = (model.length, model.shape, model.classes, model.time_free, model.horizon, model.pictures)
    assert facts == (16, (4, 4), CLASSES, True, 1.0, None)
    expected = straight(TINY, x, labels)[..., :CODES]
    found = all_logits(model.labelled(torch.tensor(labels)), x)
    np.testing.assert_allclose(found, expected, atol=off * np.abs(expected).max())
    without = all_logits(model, x)
    np.testing.assert_allclose(without, straight(TINY, x, 3 * [CLASSES])[..., :CODES], atol=off * np.abs(without).max())


def test_files(tmp_path: Path) -> None:
    x = some_codes(2)
    expected = all_logits(load(saved(tmp_path)), x)
    training = {"iter": 7, "global_epoch": 3, "model_state_dict": TINY, "optimizer_state_dict": {"state": {}}}
    torch.save(training, tmp_path / "MaskGIT.pth")
    shared = {f"module.{name}": tensor for name, tensor in TINY.items()}
    torch.save({"model_state_dict": shared}, tmp_path / "parallel.pth")
    for name in ("MaskGIT.pth", "parallel.pth"):
        assert np.array_equal(all_logits(load(tmp_path / name), x), expected)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "parallel.pth").unlink()
    assert np.array_equal(all_logits(load(tmp_path), x), expected)


def test_rows_where_asked(tmp_path: Path) -> None:
    """Each row has its own position's bias, whichever rows are asked for, in whatever order."""
    model, x = load(saved(tmp_path), dtype=torch.float64), some_codes(3)
    whole = torch.from_numpy(all_logits(model, x)).flatten(0, 1)
    evaluation = model(x, NOW)
    for positions in ([40, 3, 3, 17], [47], list(range(47, -1, -1)), []):
        asked = torch.tensor(positions, dtype=torch.int64)
        torch.testing.assert_close(evaluation.logits(asked), whole[asked], rtol=0, atol=1e-12)
    bias = TINY["bias"]
    assert len(torch.unique(bias[:-1], dim=0)) == SIDE**2


def test_positions_are_known_in_half_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More positions than bfloat16 has whole numbers in a row; with no embeddings, a row is its position's bias."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    side = 20
    tensors = filled(layout(CODES, CLASSES, side, HIDDEN, INNER, 1))
    tensors["tok_emb.weight"].zero_()
    tensors["bias"] = (torch.arange(side * side + 1) % 128).unsqueeze(1).expand(-1, CODES + CLASSES + 2).contiguous()
    tensors["bias"] = tensors["bias"].float()
    model = load(saved(tmp_path, tensors), dtype=torch.bfloat16)
    found = all_logits(model, torch.full((2, side * side), CODES))
    assert np.array_equal(found, np.broadcast_to((np.arange(side * side) % 128)[:, None], found.shape))


def test_guidance(tmp_path: Path) -> None:
    model, x = load(saved(tmp_path), dtype=torch.float64), some_codes(2)
    told, untold = straight(TINY, x, [1, 3])[..., :CODES], straight(TINY, x, 2 * [CLASSES])[..., :CODES]
    rows = all_logits(tl.guided(model, 1.5, [1, 3]), x)
    np.testing.assert_allclose(rows - rows.mean(-1, keepdims=True), _centred(2.5 * told - 1.5 * untold), atol=1e-10)


def _centred(rows: np.ndarray) -> np.ndarray:
    return rows - rows.mean(-1, keepdims=True)


def test_the_public_sizes() -> None:
    shapes = layout(1024, 1000, 16, 768, 3072, 24)
    assert shapes["tok_emb.weight"] == (2026, 768)
    assert shapes["bias"] == (257, 2026)
    with torch.device("meta"):
        network = MaskGIT(module.Sizes(1024, 1000, 16, 768, 3072, 24, 16))
    assert {name: tuple(value.shape) for name, value in network.state_dict().items()} == shapes


def test_errors(tmp_path: Path) -> None:
    wrong = {name: tensor for name, tensor in TINY.items() if name != "last_layer.2.bias"}
    wrong |= {"head.weight": torch.zeros(2), "bias": torch.zeros(17, 5)}
    fault = r"missing: last_layer.2.bias; surplus: head.weight; misshapen: bias \[17, 5\] instead of \[17, 27\]"
    with pytest.raises(ValueError, match=fault):
        load(saved(tmp_path, wrong))
    with pytest.raises(ValueError, match=r"no pos_emb among the weights"):
        load(saved(tmp_path, {"tok_emb.weight": torch.zeros(27, 4), "a": torch.zeros(1)}))
    with pytest.raises(ValueError, match=r"pos_emb of weights=.*=18: must be the positions of a square"):
        load(saved(tmp_path, TINY | {"pos_emb": torch.zeros(1, 18, HIDDEN)}))
    path = saved(tmp_path)
    with pytest.raises(ValueError, match=r"codes=1024: there are 27 embeddings"):
        maskgit(path)
    with pytest.raises(ValueError, match=r"heads=5: must divide the width of the weights, 32"):
        maskgit(path, codes=CODES, heads=5)
    with pytest.raises(ValueError, match=r"dtype=torch.int64: give a floating-point one"):
        load(path, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"none.*give maskgit:PATH"):
        maskgit(tmp_path / "none")
    other = saved(tmp_path, filled(vqgan_layout(9, 4, 4, (32,), 1, ())), "vqgan.safetensors")
    with pytest.raises(ValueError, match=r"vqgan=.*has 9 codes, but the model 20"):
        load(path, vqgan=other)


# --- VQGAN


def vqgan_layout(
    codes: int, embedding: int, latent: int, widths: tuple[int, ...], blocks: int, attentive: tuple[int, ...]
) -> Shapes:
    """Names and shapes in taming-transformers."""
    shapes: Shapes = {"quantize.embedding.weight": (codes, embedding)}

    def conv(name: str, before: int, after: int, size: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (after, before, size, size), (after,)

    def norm(name: str, width: int) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (width,)

    def residual(name: str, before: int, after: int) -> None:
        norm(f"{name}.norm1", before)
        conv(f"{name}.conv1", before, after, 3)
        norm(f"{name}.norm2", after)
        conv(f"{name}.conv2", after, after, 3)
        if before != after:
            conv(f"{name}.nin_shortcut", before, after, 1)

    def attention(name: str, width: int) -> None:
        norm(f"{name}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", width, width, 1)

    conv("post_quant_conv", embedding, latent, 1)
    now = widths[-1]
    conv("decoder.conv_in", latent, now, 3)
    residual("decoder.mid.block_1", now, now)
    attention("decoder.mid.attn_1", now)
    residual("decoder.mid.block_2", now, now)
    for level in range(len(widths) - 1, -1, -1):
        for n in range(blocks):
            residual(f"decoder.up.{level}.block.{n}", now, widths[level])
            now = widths[level]
            if level in attentive:
                attention(f"decoder.up.{level}.attn.{n}", now)
        if level:
            conv(f"decoder.up.{level}.upsample.conv", now, now, 3)
    norm("decoder.norm_out", now)
    conv("decoder.conv_out", now, 3, 3)
    return shapes


WIDTHS, ATTENTIVE = (32, 32, 64), (2,)
PICTURES = filled(vqgan_layout(CODES, 6, 5, WIDTHS, 2, ATTENTIVE), seed=3)


def straight_images(weights: Weights, codes: Tensor) -> Tensor:
    """The decoder in float64, one operation after the other."""
    w = {name: tensor.double() for name, tensor in weights.items()}

    def conv(name: str, x: Tensor) -> Tensor:
        size = w[f"{name}.weight"].shape[2]
        patches = F.unfold(x, size, padding=size // 2)
        out = w[f"{name}.weight"].flatten(1) @ patches + w[f"{name}.bias"].view(-1, 1)
        return out.unflatten(2, x.shape[2:])

    def norm(name: str, x: Tensor) -> Tensor:
        groups = x.unflatten(1, (32, -1))
        groups = groups - groups.mean((2, 3, 4), keepdim=True)
        groups = groups / torch.sqrt(groups.square().mean((2, 3, 4), keepdim=True) + 1e-6)
        return groups.flatten(1, 2) * w[f"{name}.weight"].view(-1, 1, 1) + w[f"{name}.bias"].view(-1, 1, 1)

    def swish(x: Tensor) -> Tensor:
        return x / (1 + torch.exp(-x))

    def residual(name: str, x: Tensor) -> Tensor:
        h = conv(f"{name}.conv1", swish(norm(f"{name}.norm1", x)))
        h = conv(f"{name}.conv2", swish(norm(f"{name}.norm2", h)))
        return h + (conv(f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in w else x)

    def attention(name: str, x: Tensor) -> Tensor:
        h = norm(f"{name}.norm", x)
        q, k, v = (conv(f"{name}.{part}", h).flatten(2) for part in "qkv")
        shares = torch.softmax(torch.einsum("bci,bcj->bij", q, k) / math.sqrt(x.shape[1]), 2)
        return x + conv(f"{name}.proj_out", torch.einsum("bij,bcj->bci", shares, v).view_as(x))

    x = conv("post_quant_conv", w["quantize.embedding.weight"][codes].permute(0, 3, 1, 2))
    x = conv("decoder.conv_in", x)
    x = residual("decoder.mid.block_2", attention("decoder.mid.attn_1", residual("decoder.mid.block_1", x)))
    for level in range(len(WIDTHS) - 1, -1, -1):
        for n in range(2):
            x = residual(f"decoder.up.{level}.block.{n}", x)
            if level in ATTENTIVE:
                x = attention(f"decoder.up.{level}.attn.{n}", x)
        if level:
            x = conv(f"decoder.up.{level}.upsample.conv", x.repeat_interleave(2, 2).repeat_interleave(2, 3))
    x = conv("decoder.conv_out", swish(norm("decoder.norm_out", x)))
    return (x / 2 + 0.5).clip(0, 1)


@pytest.mark.parametrize(("dtype", "off"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_images(dtype: torch.dtype, off: float, tmp_path: Path) -> None:
    codes = torch.randint(0, CODES, (decoder.BATCH + 1, 4, 3), generator=torch.Generator().manual_seed(2))
    images = vqgan(saved(tmp_path, PICTURES), dtype).decode(codes)
    assert images.shape == (decoder.BATCH + 1, 3, 16, 12)
    expected = straight_images(PICTURES, codes)
    assert 0.2 < float(((expected > 0) & (expected < 1)).double().mean()) < 1  # both ends are cut off, and it matters
    torch.testing.assert_close(images.double(), expected, rtol=0, atol=off)


def training_file(folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Path:
    """A checkpoint as taming-transformers has it: with an encoder and a loss, and a class among its notes."""
    parts = CALLBACK.split(".")
    for n in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:n]), ModuleType(".".join(parts[:n])))
    callback = type(parts[-1], (), {"__module__": ".".join(parts[:-1])})
    setattr(sys.modules[callback.__module__], parts[-1], callback)
    others = ("encoder.conv_in.weight", "quant_conv.bias", "loss.discriminator.main.0.weight", "loss.logvar")
    weights = PICTURES | {name: torch.zeros(3) for name in others}
    content = {"epoch": 9, "global_step": 4, "callbacks": {callback: {"best_model_path": "a"}}, "state_dict": weights}
    torch.save(content | more, folder / "last.ckpt")
    for n in range(1, len(parts)):
        monkeypatch.delitem(sys.modules, ".".join(parts[:n]))
    return folder / "last.ckpt"


def test_training_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = training_file(tmp_path, monkeypatch)
    with pytest.raises(pickle.UnpicklingError, match="ModelCheckpoint"):
        torch.load(path, weights_only=True)
    codes = torch.arange(12).view(1, 3, 4)
    torch.testing.assert_close(
        vqgan(path, torch.float64).decode(codes), straight_images(PICTURES, codes), rtol=0, atol=1e-12
    )


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_no_code_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = training_file(tmp_path, monkeypatch, note=Evil(tmp_path / "trace"))
    with pytest.raises(ValueError, match=r"last\.ckpt.*mkdir.*would run code.*refused"):
        vqgan(path)
    assert not (tmp_path / "trace").exists()


def test_the_public_decoder() -> None:
    sizes = decoder.Sizes(1024, 256, 256, (128, 128, 256, 256, 512), 3, frozenset({4}), 3)
    with torch.device("meta"):
        network = VQGAN(sizes)
    shapes = vqgan_layout(1024, 256, 256, (128, 128, 256, 256, 512), 3, (4,))
    assert {name: tuple(value.shape) for name, value in network.state_dict().items()} == shapes
    assert shapes["decoder.up.3.block.0.nin_shortcut.weight"] == (256, 512, 1, 1)


def test_vqgan_errors(tmp_path: Path) -> None:
    wrong = {name: tensor for name, tensor in PICTURES.items() if name != "decoder.mid.attn_1.q.bias"}
    wrong |= {"head.weight": torch.zeros(2), "decoder.norm_out.bias": torch.zeros(5)}
    fault = r"missing: decoder.mid.attn_1.q.bias; surplus: head.weight; misshapen: decoder.norm_out.bias \[5\] instead"
    with pytest.raises(ValueError, match=fault):
        vqgan(saved(tmp_path, wrong))
    with pytest.raises(ValueError, match=r"no quantize.embedding.weight among the weights \(bias"):
        vqgan(saved(tmp_path, TINY))
    with pytest.raises(ValueError, match=r"none': no such file"):
        vqgan(tmp_path / "none")
    with pytest.raises(ValueError, match=r"codes=\[0, 20\]: must be 0 to 19; a mask is no code"):
        vqgan(saved(tmp_path, PICTURES)).decode(torch.tensor([[[0, CODES]]]))


def test_from_codes_to_images(tmp_path: Path) -> None:
    pictures = saved(tmp_path, PICTURES, "vqgan.safetensors")
    model = load(saved(tmp_path), vqgan=pictures)
    draws = [tl.sample(tl.guided(model, 2.0, [0, 1, 2]), tl.Tweedie(), nfe=8, num=3, batch_size=n) for n in (3, 2)]
    assert torch.equal(draws[0].x, draws[1].x)
    images = model.pictures.decode(draws[0].x.unflatten(1, model.shape))
    assert images.shape == (3, 3, 16, 16)
    assert not torch.equal(images[0], images[1])
    torch.testing.assert_close(images.double(), straight_images(PICTURES, draws[0].x.view(-1, 4, 4)), rtol=0, atol=1e-5)
