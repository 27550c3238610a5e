"""What the paper reports on text: its tables, as they are printed. Nothing here was measured by this library.

All are for RADD (small, trained with the lambda-DCE loss) on 1024 tokens: 1024 samples a row, log-linear schedule with
eps = 1e-3, equal steps down to delta = 1e-3, theta = 1/2 for both two-stage methods.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FHS, EULER, TWEEDIE, TAU = "FHS", "Euler", "Tweedie tau-leaping", "tau-leaping"
SEMI_AR, RK2, TRAPEZOIDAL = "Semi-AR", "theta-RK-2", "theta-Trapezoidal"
NFES = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Table:
    """Figures of the paper, by method and evaluations."""

    about: str
    """What the figures are, and where the paper has them."""
    label: str
    """What the paper's source calls the table."""
    values: dict[str, dict[int, float]]
    spread: dict[str, dict[int, float]] = field(default_factory=dict)
    """What the paper writes behind ±, without saying what it is; nothing in most tables."""


def _rows(nfes: tuple[int, ...], **values: tuple[float, ...]) -> dict[str, dict[int, float]]:
    names = {"fhs": FHS, "euler": EULER, "tweedie": TWEEDIE, "tau": TAU, "semi_ar": SEMI_AR}
    names |= {"rk2": RK2, "trapezoidal": TRAPEZOIDAL}
    return {names[key]: dict(zip(nfes, row, strict=True)) for key, row in values.items()}


SHORT = Table(
    "perplexity under GPT-2 large (the table of the main text); upper bounds, as the paper writes them",
    "tab:perplexity",
    _rows(
        (128, 1024),
        fhs=(122.732, 109.406),
        euler=(86.276, 44.686),
        tweedie=(85.738, 44.257),
        tau=(52.366, 28.797),
        semi_ar=(360.793, 147.406),
        rk2=(64.317, 36.330),
        trapezoidal=(49.051, 27.553),
    ),
)
"""At 1024 evaluations theta-RK-2 is 36.330 here, and 33.971 in the full table."""

GPT2 = Table(
    "perplexity under GPT-2 large (the full table, in the appendix); upper bounds, as the paper writes them",
    "tab:perplexity_full_gpt",
    _rows(
        NFES,
        fhs=(307.425, 186.594, 141.625, 122.732, 113.310, 113.026, 109.406),
        euler=(277.962, 160.586, 111.597, 86.276, 68.092, 55.622, 44.686),
        tweedie=(277.133, 160.248, 110.848, 85.738, 70.102, 55.194, 44.257),
        tau=(126.835, 96.321, 69.226, 52.366, 41.694, 33.789, 28.797),
        semi_ar=(2857.469, 1543.302, 741.184, 360.793, 222.303, 164.162, 147.406),
        rk2=(127.363, 109.351, 86.102, 64.317, 49.816, 40.375, 33.971),
        trapezoidal=(123.585, 89.912, 66.549, 49.051, 39.959, 32.456, 27.553),
    ),
)

LLAMA = Table(
    "perplexity under LLaMA 3 8B (appendix); upper bounds, as the paper writes them",
    "tab:perplexity_full_llama",
    _rows(
        NFES,
        fhs=(342.498, 210.742, 155.258, 132.135, 127.526, 123.013, 120.791),
        euler=(318.413, 175.555, 125.955, 91.051, 75.245, 59.971, 49.406),
        tweedie=(316.744, 172.941, 121.248, 94.253, 75.403, 59.943, 49.239),
        tau=(152.867, 117.930, 86.980, 68.090, 53.664, 44.676, 38.293),
        semi_ar=(2696.883, 1684.973, 829.391, 410.177, 251.963, 166.927, 162.093),
        rk2=(150.439, 132.090, 107.066, 80.742, 63.277, 52.563, 44.687),
        trapezoidal=(146.027, 113.260, 83.456, 66.071, 54.307, 44.293, 35.524),
    ),
)

ENTROPY = Table(
    "unigram entropy in the tokens of LLaMA 3 (appendix), without a unit; above log 1024 = 6.9 nats, so in bits",
    "tab:unigram_entropy_full_llama",
    _rows(
        NFES,
        fhs=(7.843, 7.793, 7.748, 7.712, 7.714, 7.716, 7.717),
        euler=(7.785, 7.677, 7.594, 7.446, 7.343, 7.158, 6.962),
        tweedie=(7.786, 7.675, 7.564, 7.453, 7.345, 7.151, 6.970),
        tau=(7.048, 7.122, 7.016, 6.890, 6.706, 6.537, 6.407),
        semi_ar=(8.019, 8.056, 7.994, 7.908, 7.836, 7.771, 7.810),
        rk2=(6.772, 7.017, 7.085, 7.010, 6.831, 6.682, 6.548),
        trapezoidal=(7.126, 7.163, 7.033, 6.919, 6.740, 6.532, 6.412),
    ),
)

POSITIVE = Table(
    "extrapolated intensities that are positive, in percent (appendix); the paper does not say what is counted",
    "tab:positive_intensity",
    _rows(
        NFES[1:],
        rk2=(97.21, 98.31, 98.01, 99.27, 99.44, 99.52),
        trapezoidal=(95.67, 97.06, 98.22, 98.87, 99.24, 99.43),
    ),
    _rows(NFES[1:], rk2=(3.1, 2.0, 1.3, 0.9, 0.7, 0.6), trapezoidal=(4.8, 3.6, 2.4, 1.6, 1.1, 0.9)),
)

TEXT = {"perplexity, GPT-2 large": GPT2, "perplexity, LLaMA 3": LLAMA, "unigram entropy": ENTROPY}
"""The three tables on text, by what they show."""
TABLES = (SHORT, GPT2, LLAMA, ENTROPY, POSITIVE)
