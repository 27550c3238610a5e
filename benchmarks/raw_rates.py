"""SEDD's ratios as they are, and scaled to those of a law: how far apart the laws of samples are, exactly.

    python -m benchmarks.raw_rates

Networks of SEDD with random weights, from nearly none to large, two positions of three tokens, and eight steps: total variation
between the law of `RawRates`, which draws as published code does, and that of `Tweedie`. With weights of zero the ratios
are those of a law, and both agree.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import warnings
from pathlib import Path

import torch

import thetaleap as tl
from thetaleap.models.hf.published import sedd
from thetaleap.models.hf.raw_rates import RawRates
from thetaleap.models.transformer import Sizes, Transformer

LENGTH, STEPS, NETWORKS, SCALES = 2, 8, 5, (0.05, 0.1, 0.2, 0.4, 0.8)


def network(sizes: Sizes, scale: float, seed: int) -> Transformer:
    module, generator = Transformer(sizes), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return module


def distance(folder: Path, graph: str, scale: float, seed: int) -> float:
    sizes = Sizes(tokens=3, hidden=24, blocks=2, heads=3, cond_dim=10, masked=graph == "absorb")
    torch.save({"model": network(sizes, scale, seed).state_dict()}, folder / "checkpoint.pth")
    config = {"graph": {"type": graph}, "noise": {"type": "loglinear"}, "scale_by_sigma": graph == "absorb"}
    (folder / "config.json").write_text(json.dumps(config))
    model = sedd(folder, LENGTH, torch.float64)
    grid = tl.grids.uniform(1.0, 1e-3, STEPS)
    raw, scaled = (tl.exact.law(model, solver, grid) for solver in (RawRates(), tl.Tweedie()))
    return 0.5 * float((raw - scaled).abs().sum())


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # that ratios are those of no law is the point
    with tempfile.TemporaryDirectory() as name:
        for graph in ("absorb", "uniform"):
            for scale in SCALES:
                found = [distance(Path(name), graph, scale, seed) for seed in range(NETWORKS)]
                print(
                    f"{graph}, weights of {scale}: median {statistics.median(found):.3f}, most {max(found):.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
