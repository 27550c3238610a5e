"""The transformer against a second one, written straight down in NumPy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from thetaleap.models.transformer import Patches, Sizes, Transformer

RADD = Sizes(tokens=11, hidden=24, blocks=2, heads=3)
SEDD = replace(RADD, cond_dim=10)
UNIFORM = replace(SEDD, masked=False)
ALL = {"radd": RADD, "sedd": SEDD, "uniform": UNIFORM}


def randomised(sizes: Sizes, seed: int = 0) -> Transformer:
    """A network none of whose parameters is special."""
    module, generator = Transformer(sizes), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def tokens(sizes: Sizes, shape: tuple[int, ...] = (3, 7), seed: int = 1) -> Tensor:
    return torch.randint(0, sizes.channels, shape, generator=torch.Generator().manual_seed(seed))


def straight(
    tensors: dict[str, Tensor],
    x: Tensor,
    heads: int,
    sigma: Tensor | None = None,
    places: np.ndarray | None = None,
    seen: np.ndarray | float = 1.0,
) -> np.ndarray:
    """All output channels, (b, d, channels), by the published formulas in float64; positions have the numbers `places`,
    and `seen` is 1 where the first of two sees the second, and else 0."""
    w = {name: tensor.detach().double().numpy() for name, tensor in tensors.items()}
    places = np.arange(x.shape[1]) if places is None else places
    levels = [None if sigma is None else float(sigma[n]) for n in range(len(x))]
    return np.stack([_one(w, row, heads, level, places, seen) for row, level in zip(x, levels, strict=True)])


def _one(
    w: dict[str, np.ndarray],
    row: Tensor,
    heads: int,
    sigma: float | None,
    places: np.ndarray,
    seen: np.ndarray | float,
) -> np.ndarray:
    def norm(h: np.ndarray, name: str) -> np.ndarray:
        centred = h - h.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return scaled * w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)

    def linear(h: np.ndarray, name: str) -> np.ndarray:
        return h @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def silu(h: np.ndarray) -> np.ndarray:
        return h / (1 + np.exp(-h))

    def modulation(name: str, parts: int) -> Any:
        if sigma is None:
            return ([0.0, 0.0, 1.0] * 2)[:parts]
        waves = [sigma * math.exp(-math.log(10_000) * k / 128) for k in range(128)]
        embedded = np.array([math.cos(a) for a in waves] + [math.sin(a) for a in waves])
        c = silu(linear(silu(linear(embedded, "sigma_map.mlp.0")), "sigma_map.mlp.2"))
        return np.split(linear(c, name), parts)

    h = w["vocab_embed.embedding"][row.numpy()]
    length, width = h.shape
    size = width // heads
    blocks = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("blocks."))
    for i in range(blocks):
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation(f"blocks.{i}.adaLN_modulation", 6)
        qkv = linear(norm(h, f"blocks.{i}.norm1") * (1 + scale1) + shift1, f"blocks.{i}.attn_qkv")
        mixed = np.zeros((length, width))
        for head in range(heads):
            q, k, v = (qkv[:, part * width + head * size :][:, :size] for part in range(3))
            turns = np.exp(1j * np.outer(places, w["rotary_emb.inv_freq"]))
            q, k = (turns * (a[:, : size // 2] + 1j * a[:, size // 2 :]) for a in (q, k))
            weights = np.exp((q @ k.conj().T).real / math.sqrt(size)) * seen
            mixed[:, head * size :][:, :size] = weights / weights.sum(1, keepdims=True) @ v
        h = h + gate1 * linear(mixed, f"blocks.{i}.attn_out")
        inner = linear(norm(h, f"blocks.{i}.norm2") * (1 + scale2) + shift2, f"blocks.{i}.mlp.0")
        inner = 0.5 * inner * (1 + np.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        h = h + gate2 * linear(inner, f"blocks.{i}.mlp.2")
    shift, scale = modulation("output_layer.adaLN_modulation", 2)
    return linear(norm(h, "output_layer.norm_final") * (1 + scale) + shift, "output_layer.linear")


def published_shapes(conditioned: bool) -> dict[str, list[int]]:
    """The layout of the published weights of the small size."""
    shapes = {"vocab_embed.embedding": [50258, 768], "rotary_emb.inv_freq": [32]}
    norms, mod = ["output_layer.norm_final"], {"output_layer.adaLN_modulation": 2}
    for i in range(12):
        norms += [f"blocks.{i}.norm1", f"blocks.{i}.norm2"]
        mod[f"blocks.{i}.adaLN_modulation"] = 6
        shapes |= {f"blocks.{i}.attn_qkv.weight": [2304, 768], f"blocks.{i}.attn_out.weight": [768, 768]}
        shapes |= {f"blocks.{i}.mlp.0.weight": [3072, 768], f"blocks.{i}.mlp.0.bias": [3072]}
        shapes |= {f"blocks.{i}.mlp.2.weight": [768, 3072], f"blocks.{i}.mlp.2.bias": [768]}
    shapes |= {f"{name}.weight": [768] for name in norms}
    shapes |= {"output_layer.linear.weight": [50258, 768], "output_layer.linear.bias": [50258]}
    if not conditioned:
        return shapes | {f"{name}.bias": [768] for name in norms}
    shapes |= {"sigma_map.mlp.0.weight": [128, 256], "sigma_map.mlp.0.bias": [128]}
    shapes |= {"sigma_map.mlp.2.weight": [128, 128], "sigma_map.mlp.2.bias": [128]}
    shapes |= {f"{name}.weight": [parts * 768, 128] for name, parts in mod.items()}
    return shapes | {f"{name}.bias": [parts * 768] for name, parts in mod.items()}


@pytest.mark.parametrize("cond_dim", [None, 128])
def test_layout_is_the_published_one(cond_dim: int | None) -> None:
    with torch.device("meta"):
        module = Transformer(Sizes(tokens=50257, cond_dim=cond_dim))
    shapes = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    assert shapes == published_shapes(cond_dim is not None)
    assert [name for name, _ in module.named_buffers()] == ["rotary_emb.inv_freq"]


def test_parameters_are_in_the_published_order() -> None:
    # that in which the originals register them, on which lists of averaged parameters rely
    block = ["norm1", "norm1", "attn_qkv", "attn_out", "norm2", "norm2", "mlp", "mlp", "mlp", "mlp"]
    order = ["vocab_embed"] + 2 * block + ["norm_final"] * 2 + ["linear"] * 2
    names = [name for name, _ in Transformer(RADD).named_parameters()]
    assert [wanted in name for wanted, name in zip(order, names, strict=True)] == [True] * len(order)
    block = ["norm1", "attn_qkv", "attn_out", "norm2", "mlp", "mlp", "mlp", "mlp", "adaLN", "adaLN"]
    order = ["vocab_embed"] + ["sigma_map"] * 4 + 2 * block + ["norm_final", "linear", "linear", "adaLN", "adaLN"]
    names = [name for name, _ in Transformer(SEDD).named_parameters()]
    assert [wanted in name for wanted, name in zip(order, names, strict=True)] == [True] * len(order)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_equals_the_formulas(name: str, dtype: torch.dtype, off: float) -> None:
    sizes = ALL[name]
    module, x = randomised(sizes).to(dtype), tokens(sizes)
    sigma = None if sizes.cond_dim is None else torch.tensor([0.0, 0.7, 7.0], dtype=torch.float64)
    expected = straight(module.state_dict(), x, sizes.heads, sigma)
    assert np.abs(expected).max() > 1
    logits = module(x, sigma)
    assert logits.dtype == dtype
    np.testing.assert_allclose(
        logits.detach().numpy(), expected[..., : sizes.tokens], atol=off * np.abs(expected).max()
    )


@given(st.sampled_from(sorted(ALL)), st.lists(st.integers(0, 20), max_size=30))
@settings(max_examples=20)
def test_head_of_some_rows(name: str, rows: list[int]) -> None:
    sizes = ALL[name]
    module, x = randomised(sizes).double(), tokens(sizes)
    sigma = None if sizes.cond_dim is None else torch.tensor([0.1, 1.0, 3.0])
    some = module.head(module.trunk(x, sigma).flatten(0, 1)[rows])
    torch.testing.assert_close(some, module(x, sigma).flatten(0, 1)[rows], rtol=0, atol=1e-12)


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No oneDNN: some virtual machines announce AMX, with which it multiplies in bfloat16, but do not allow it."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.mark.usefixtures("portable")
def test_half_precision() -> None:
    for sizes in ALL.values():
        module, x = randomised(sizes), tokens(sizes)
        sigma = None if sizes.cond_dim is None else torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)
        expected = module(x, sigma)
        frequencies = module.rotary_emb.inv_freq.clone()
        module = module.to(torch.bfloat16)
        assert module.rotary_emb.inv_freq.dtype == torch.float32
        assert torch.equal(module.rotary_emb.inv_freq, frequencies)
        logits = module(x, sigma)
        assert logits.dtype == torch.bfloat16
        assert (logits.float() - expected).std().item() < 0.05 * expected.std().item()


def test_gives_equal_logits_untrained_and_learns() -> None:
    for sizes in ALL.values():
        torch.manual_seed(0)
        module, x = Transformer(sizes), tokens(sizes)
        sigma = None if sizes.cond_dim is None else torch.tensor([0.1, 1.0, 3.0])
        assert not bool(module(x, sigma).any())
        optimizer = torch.optim.Adam(module.parameters(), 1e-2)
        losses = []
        for _ in range(40):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(module(x, sigma).flatten(0, 1), x.flatten() % sizes.tokens)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(math.log(sizes.tokens))
        assert losses[-1] < 0.1
        still = [name for name, p in module.named_parameters() if p.grad is None or not bool(p.grad.any())]
        assert still == []


def test_dropout_is_for_training() -> None:
    module, x = randomised(replace(RADD, dropout=0.5)), tokens(RADD)
    assert torch.equal(module(x), randomised(RADD)(x))
    module.train()
    assert not torch.equal(module(x), module(x))


@pytest.mark.usefixtures("portable")
def test_autocast() -> None:
    module, x = randomised(SEDD), tokens(SEDD)
    sigma = torch.tensor([0.1, 1.0, 3.0])
    expected = module(x, sigma)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = module(x, sigma)
    assert (logits.float() - expected).std().item() < 0.05 * expected.std().item()


def test_errors() -> None:
    with pytest.raises(ValueError, match="heads=5: must divide the width, 24"):
        replace(RADD, heads=5)
    with pytest.raises(ValueError, match="heads=8: must divide the width, 24, into parts of even size"):
        replace(RADD, heads=8)
    with pytest.raises(ValueError, match="blocks=0"):
        replace(RADD, blocks=0)
    with pytest.raises(ValueError, match="cond_dim=0"):
        replace(RADD, cond_dim=0)
    with pytest.raises(ValueError, match="sigma=None: this network is told the noise level"):
        randomised(SEDD)(tokens(SEDD))


def test_squares_are_put_together_and_apart_again() -> None:
    patches, corner = Patches(2, 6, 4), torch.eye(4).repeat_interleave(4, 1) * torch.eye(4)[0].repeat(4)
    with torch.no_grad():
        for linear, weight in ((patches.fold, corner), (patches.unfold, corner.T)):
            linear.weight.copy_(weight)
            linear.bias.zero_()
    x = torch.arange(24.0).view(1, 24, 1) * torch.eye(4)[0]  # the first channel tells the position
    squares = patches.together(x)
    assert squares[0].tolist()[:2] == [[0, 1, 6, 7], [2, 3, 8, 9]]
    assert squares[0].tolist()[3] == [12, 13, 18, 19]
    assert torch.equal(patches.apart(squares), x)


def test_a_network_of_squares_gives_every_position_logits_of_its_own() -> None:
    torch.manual_seed(0)
    module = Transformer(Sizes(3, 16, 2, 2, row=6, patch=3)).double()
    nn.init.normal_(module.output_layer.linear.weight)
    x = torch.randint(4, (2, 36))
    logits = module(x)
    assert logits.shape == (2, 36, 3)
    assert len(logits[0].unique(dim=0)) == 36
    x[0, 35] = (x[0, 35] + 1) % 4  # seen from everywhere, and not from another sample
    changed = (module(x) != logits).all(2)
    assert changed[0].all()
    assert not changed[1].any()


@pytest.mark.parametrize(
    ("told", "error"),
    [({"row": 14, "patch": 4}, "patch=4: must divide the 14 positions"), ({"patch": 2}, "patch=2: is for images")],
)
def test_squares_fit_the_image(told: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Sizes(3, 16, 2, 2, **told)  # pyright: ignore[reportArgumentType]
