"""Text without masks.

Under the uniform process every position always holds a token, and may change more than once. Each row is the text at one
moment; a token is dark where it is the final one, and red where it changed since the row above.
"""

# %%
import matplotlib.pyplot as plt

import thetaleap as tl

# %%
model = tl.load("shakespeare-uniform")
moments = []
out = tl.sample(model, nfe=32, seed=4, on_step=lambda moment: moments.append((moment.t, moment.x[0].clone())))

# %%
figure, axis = plt.subplots(figsize=(9, 3.2), layout="constrained")
rows, width, before = moments[::4], 84, None
for row, (t, x) in enumerate(rows):
    column = 0
    for place, token in enumerate(x.tolist()):
        final = token == int(out.x[0, place])
        moved = before is not None and token != int(before[place])
        letters = model.tokenizer.decode([token]).replace("\n", "¶")
        for letter in letters[: width - column]:
            colour = "firebrick" if moved else "0.0" if final else "0.65"
            shown = r"\$" if letter == "$" else letter if letter.isprintable() else "·"
            axis.text(column, -row, shown, family="monospace", size=8, color=colour)
            column += 1
    axis.text(-1, -row, f"t = {t:.2f}", ha="right", size=7, color="0.4")
    before = x
axis.set(xlim=(-6, width), ylim=(0.6 - len(rows), 1))
axis.axis("off")
figure.savefig("uniform_text.png", dpi=110)
