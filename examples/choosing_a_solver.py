"""Which solver for this model?

`tl.compare` runs solvers at equal evaluations, and ranks them where their intervals do not overlap. The model is a
Markov chain, so the figure is the distance of neighbouring pairs from the truth.
"""

# %%
import matplotlib.pyplot as plt

import thetaleap as tl

# %%
model = tl.load("chain64")
print(tl.recommend(model, nfe=8).reason)
contenders = {
    "auto, the default": "auto",
    "Multistep()": tl.Multistep(),
    "Tweedie()": tl.Tweedie(),
    "Trapezoidal(), the paper's": tl.Trapezoidal(theta=0.5, rule="reject"),
    "surest first": tl.Tweedie(tl.Confidence()),
}
comparison = tl.compare(model, contenders, [4, 8, 16, 32], num=400)
print(comparison.text())

# %%
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for name in contenders:
    rows = [row for row in comparison.rows if row.contender == name]
    axis.loglog([row.budget for row in rows], [row.figures["pair_kl"].value for row in rows], "o-", label=name)
axis.set(
    xlabel="evaluations", ylabel="KL of neighbouring pairs, nats", xticks=[4, 8, 16, 32], xticklabels=[4, 8, 16, 32]
)
axis.minorticks_off()
axis.legend()
figure.savefig("choosing_a_solver.png", dpi=110)
