"""Samples that parse as molecules: strings of SELFIES symbols, each of which is one, checked by RDKit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import thetaleap as tl

LENGTH, OTHERS = 24, ["<mask>", "<eos>", "[unused0]", "(", "[#Xe]"]


@pytest.mark.molecules
def test_symbols_that_are_robust_always_parse() -> None:
    """A network that likes what is no symbol: unconstrained, few samples parse; constrained, all do."""
    chem: Any = pytest.importorskip("rdkit.Chem")
    selfies: Any = pytest.importorskip("selfies")
    robust = sorted(selfies.get_semantic_robust_alphabet())
    words = [*OTHERS, *robust]

    def network(x: Tensor, t: Tensor) -> Tensor:
        """Depends on the neighbours, and on nothing chemical."""
        near = torch.roll(x, 1, 1).unsqueeze(2) * 7 + torch.roll(x, -1, 1).unsqueeze(2) * 5
        return torch.sin(near + 3.0 * torch.arange(len(words))) + (torch.arange(len(words)) < len(OTHERS))

    def molecules(model: Any) -> list[str | None]:
        found: list[str | None] = []
        for row in tl.sample(model, tl.Tweedie(), nfe=6, num=200, seed=2).x.tolist():
            try:
                smiles = selfies.decoder("".join(words[token] for token in row))
            except selfies.DecoderError:
                smiles = None
            found.append(None if smiles is None or chem.MolFromSmiles(smiles) is None else smiles)
        return found

    plain = tl.from_network(tl.Masked(len(words)), length=LENGTH, network=network)
    safe = molecules(tl.constrained(plain, allow=[words.index(symbol) for symbol in robust]))
    assert all(smiles is not None for smiles in safe)
    assert len({smiles for smiles in safe if smiles}) > 100, "and they are of many kinds"
    assert sum(smiles is None for smiles in molecules(plain)) > 100, "else nothing was constrained"
