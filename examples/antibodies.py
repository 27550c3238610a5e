"""Redesign a loop of an antibody.

CDR-H3 of trastuzumab, 11 residues, is written anew by AntiBERTy, one residue at a time in random order, which is exact.
The picture has how often each residue was drawn at each place; dots are trastuzumab's own. It needs
`pip install --no-deps antiberty==0.1.3` and the extra `hub`.
"""

# %%
import matplotlib.pyplot as plt
import torch

import thetaleap as tl

# %%
BEFORE = "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSR"
LOOP, AFTER = "WGGDGFYAMDY", "WGQGTLVTVSS"
model = tl.load("antiberty", length=len(BEFORE + LOOP + AFTER))
out = tl.sample(model, tl.FirstHitting(), num=8, template=BEFORE + "_" * len(LOOP) + AFTER)
loops = [text[len(BEFORE) :][: len(LOOP)] for text in out.text]
print(*loops, sep="\n")

# %%
residues = "ACDEFGHIKLMNPQRSTVWY"
counts = torch.tensor([[sum(loop[place] == one for loop in loops) for place in range(len(LOOP))] for one in residues])
figure, axis = plt.subplots(figsize=(6, 5), layout="constrained")
picture = axis.imshow((counts / len(loops)).numpy(), cmap="Blues", aspect="auto")
axis.scatter(range(len(LOOP)), [residues.index(one) for one in LOOP], color="black", s=14)
axis.set(xticks=range(len(LOOP)), xticklabels=list(LOOP), yticks=range(len(residues)), yticklabels=list(residues))
axis.set(xlabel="trastuzumab's loop", ylabel="residue drawn")
figure.colorbar(picture, label="share of 8 samples")
figure.savefig("antibodies.png", dpi=110)
