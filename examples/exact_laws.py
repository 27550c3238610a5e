"""The law of a sampler, computed.

On small spaces `tl.exact.law` gives the probability of every sample, without Monte Carlo. So an error of 1e-7 is an
error, and not noise, and an order of convergence can be read off: here of a random law of three positions under the
uniform process.
"""

# %%
import matplotlib.pyplot as plt

import thetaleap as tl
from thetaleap.evaluation.metrics import kl

# %%
model = tl.load("cube3-uniform")
grid = tl.grids.alpha_power(model.process.schedule)
solvers = {
    "Multistep()": tl.Multistep(),
    "ExponentialTrapezoidal()": tl.ExponentialTrapezoidal(extrapolation="logit"),
    "Trapezoidal()": tl.Trapezoidal(),
    "Trapezoidal(rule='reject'), the paper's": tl.Trapezoidal(rule="reject"),
    "Tweedie()": tl.Tweedie(),
    "TauLeaping()": tl.TauLeaping(),
}
budgets = [4, 8, 16, 32]
errors = {
    name: [
        kl(model.p0, tl.exact.law(model, solver, grid(model.horizon, 0.0, nfe // solver.evaluations)))
        for nfe in budgets
    ]
    for name, solver in solvers.items()
}

# %%
figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
for name, values in errors.items():
    axis.loglog(budgets, values, "o-", label=name)
axis.set(xlabel="evaluations", ylabel="KL from the data's law, nats", xticks=budgets, xticklabels=budgets)
axis.minorticks_off()
axis.legend(fontsize=8)
figure.savefig("exact_laws.png", dpi=110)
