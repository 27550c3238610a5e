"""Samples as a Ray dataset.

`dataset` is lazy: workers draw parts of it when something asks, on this machine or on a cluster, and what comes after
the sampling runs there too. Here each digit is weighed, and the picture has the lightest and the heaviest. It needs the
extra `ray`.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np

from thetaleap.integrations.ray import Engine, dataset

# %%
engine = Engine(workers=2)  # Engine(address="auto") is the cluster that this machine belongs to
with engine.running():
    digits = dataset("mnist", nfe=8, num=96, part_size=24, engine=engine)
    weighed = digits.map(lambda row: {**row, "ink": float(row["tokens"].mean())})
    rows = weighed.sort("ink").take_all()
print(len(rows), "digits, of which sample", rows[0]["sample"], "is the lightest")

# %%
figure, axes = plt.subplots(2, 10, figsize=(9, 2.3), layout="constrained")
for axis, row in zip(axes.flat, [*rows[:10], *rows[-10:]], strict=True):
    axis.imshow(np.reshape(row["tokens"], (14, 14)), cmap="gray", vmin=0, vmax=7)
    axis.set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("lightest")
axes[1, 0].set_ylabel("heaviest")
figure.savefig("many_machines.png", dpi=110)
