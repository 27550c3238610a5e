"""Oracles: models whose conditionals, likelihood and entropy are exact, and which can be sampled truly."""

from ._common import Oracle
from .chains import MarkovChain, markov_chain
from .imperfect import Noisy, noisy
from .mixtures import Mixture, mixture
from .rules import Copy, Listed, Parity, Replace, Rule, Shuffle, ascending, copy, latin, parity, replace, shuffle
from .strips import Strip, ising, potts
from .tables import Joint, joint
from .text import MarkovText, markov_text
from .trees import Tree, tree

__all__ = [
    "Copy",
    "Joint",
    "Listed",
    "MarkovChain",
    "MarkovText",
    "Mixture",
    "Noisy",
    "Oracle",
    "Parity",
    "Replace",
    "Rule",
    "Shuffle",
    "Strip",
    "Tree",
    "ascending",
    "copy",
    "ising",
    "joint",
    "latin",
    "markov_chain",
    "markov_text",
    "mixture",
    "noisy",
    "parity",
    "potts",
    "replace",
    "shuffle",
    "tree",
]
