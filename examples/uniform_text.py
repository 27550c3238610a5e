"""Text without masks.

Under the uniform process every position always holds a character, and may change more than once. Each row is the text
at one moment; a character is dark where it is the final one, and red where it changed since the row above.
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
    for place, token in enumerate(x[:width].tolist()):
        final = token == int(out.x[0, place])
        moved = before is not None and token != int(before[place])
        letter = model.tokenizer.decode([token]).replace("\n", "¶").replace("$", r"\$")
        axis.text(
            place, -row, letter, family="monospace", size=8, color="firebrick" if moved else "0.0" if final else "0.65"
        )
    axis.text(-1, -row, f"t = {t:.2f}", ha="right", size=7, color="0.4")
    before = x
axis.set(xlim=(-6, width), ylim=(0.6 - len(rows), 1))
axis.axis("off")
figure.savefig("uniform_text.png", dpi=110)
