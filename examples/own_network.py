"""Your own network, end to end.

Train a small network of your own on points in the plane, each coordinate a token of 40 values, and sample from it. With
one evaluation both coordinates are drawn at once, as if they were independent; with two, one after the other, which is
exact.
"""

# %%
import matplotlib.pyplot as plt
import torch

import thetaleap as tl

STATES = 40
torch.manual_seed(0)


def spirals(num: int) -> torch.Tensor:
    """Points on two spirals, as pairs of tokens."""
    turn = 3 * torch.pi * torch.rand(num).sqrt()
    side = torch.randint(2, (num,)) * 2 - 1
    points = side * turn * torch.stack([turn.cos(), turn.sin()]) + 0.3 * torch.randn(2, num)
    return ((points.T / 22 + 0.5) * STATES).long().clamp(0, STATES - 1)


# %%
class Denoiser(torch.nn.Module):
    """Logits of each coordinate, given the other: a masked one is the token STATES."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(2 * (STATES + 1), 64)  # each coordinate has its own rows
        self.body = torch.nn.Sequential(
            torch.nn.Linear(128, 256), torch.nn.SiLU(), torch.nn.Linear(256, 256), torch.nn.SiLU()
        )
        self.head = torch.nn.Linear(256, 2 * STATES)

    def forward(self, x):
        rows = self.embed(x + torch.tensor([0, STATES + 1]))
        return self.head(self.body(rows.flatten(1))).view(len(x), 2, STATES)


network = Denoiser()
optimizer = torch.optim.AdamW(network.parameters(), 2e-3)
for _ in range(600):
    x = spirals(1024)
    masked = torch.rand(x.shape) < torch.rand(len(x), 1)  # a share of masks that is drawn for each point
    logits = network(torch.where(masked, STATES, x))
    loss = torch.nn.functional.cross_entropy(logits[masked], x[masked])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
network.eval()
model = tl.from_network(tl.Masked(STATES), length=2, network=network, time_free=True)
drawn = {
    "data": spirals(20_000),
    "1 evaluation": tl.sample(model, nfe=1, num=20_000).x,
    "2 evaluations, exact": tl.sample(model, nfe=2, num=20_000).x,
}

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for axis, (title, x) in zip(axes, drawn.items(), strict=True):
    axis.hist2d(*x.T.numpy(), bins=STATES, range=[[0, STATES]] * 2, cmap="magma")
    axis.set(title=title, xticks=[], yticks=[], aspect="equal")
figure.savefig("own_network.png", dpi=110)
