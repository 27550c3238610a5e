"""Fill in the lower half.

A template holds the tokens that are given, and `FREE` where the sampler may write. Here the upper half of a digit is
given, and each column is another way to finish it.
"""

# %%
import matplotlib.pyplot as plt
import torch

import thetaleap as tl

# %%
model = tl.load("mnist")  # 14 x 14 pixels in 8 greys
whole = tl.sample(tl.guided(model, 0.0, [0, 5, 9]), nfe=32, num=3, seed=3).x
template = whole.clone()
template[:, 7 * 14 :] = tl.FREE
filled = tl.sample(model, nfe=16, template=template.repeat_interleave(7, 0), seed=1).x

# %%
figure, axes = plt.subplots(3, 8, figsize=(9, 3.5), layout="constrained")
for row, given, ways in zip(axes, template, filled.view(3, 7, -1), strict=True):
    shown = torch.where(given == tl.FREE, torch.nan, given.double())
    for axis, x in zip(row, [shown, *ways], strict=True):
        axis.imshow(x.view(14, 14).numpy(), cmap="gray", vmin=0, vmax=7)
        axis.set(xticks=[], yticks=[], facecolor="lightsteelblue")
axes[0, 0].set_title("given")
axes[0, 4].set_title("filled in, 16 evaluations each")
figure.savefig("infilling.png", dpi=110)
