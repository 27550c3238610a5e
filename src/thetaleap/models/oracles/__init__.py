"""Oracles: models whose conditionals, likelihood and entropy are exact, and which can be sampled truly."""

from ._common import Oracle
from .chains import MarkovChain, markov_chain
from .imperfect import Noisy, noisy
from .mixtures import Mixture, mixture
from .strips import Strip, ising, potts
from .tables import Joint, joint
from .text import MarkovText, markov_text
from .trees import Tree, tree

__all__ = [
    "Joint",
    "MarkovChain",
    "MarkovText",
    "Mixture",
    "Noisy",
    "Oracle",
    "Strip",
    "Tree",
    "ising",
    "joint",
    "markov_chain",
    "markov_text",
    "mixture",
    "noisy",
    "potts",
    "tree",
]
