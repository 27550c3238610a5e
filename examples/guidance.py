"""Guidance by a label.

Classifier-free guidance pulls samples towards their label, at two evaluations a step. Too much of it overdoes them: see
the zeros at weight 4. A classifier that had no part in the sampling counts how many of the 20 digits it recognises.
"""

# %%
import matplotlib.pyplot as plt
import torch

import thetaleap as tl
from thetaleap.evaluation.metrics.digits import digit_labels

# %%
model = tl.load("mnist")
labels = torch.arange(10).repeat(2)
drawn = {weight: tl.sample(tl.guided(model, weight, labels), nfe=32, num=20).x for weight in (0.0, 1.0, 4.0)}

# %%
figure, axes = plt.subplots(3, 1, figsize=(7, 5), layout="constrained")
for axis, (weight, x) in zip(axes, drawn.items(), strict=True):
    right = (digit_labels(x) == labels).double().mean()
    tiles = x.view(2, 10, 14, 14).transpose(1, 2).reshape(2 * 14, 10 * 14)
    axis.imshow(tiles.numpy(), cmap="gray")
    axis.set(xticks=[], yticks=[])
    axis.set_title(f"weight {weight:g}: {right:.0%} recognised as their label", fontsize=10)
figure.savefig("guidance.png", dpi=100)
