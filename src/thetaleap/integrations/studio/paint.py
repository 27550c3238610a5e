"""HTML: samples whose tokens have a colour, tables, bars and figures. It reads well on light and dark ground."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.wrapped import unwrapped
from ...files import pictures
from .watch import SURE, WHEN, Film, has_pictures

MASK = "·"
"""What a mask is shown as."""
SCALE = torch.tensor([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], dtype=torch.float64)
"""Viridis, from 0 to 1: its order can be seen without colours too."""
MASKED, GIVEN = (120, 140, 200), (230, 120, 30)
ERROR, STALE = "tl-error", "tl-stale"
WRONG = re.compile(f"{ERROR}|{STALE}")
"""In a line that says what is wrong."""
LEGENDS = {WHEN: ("first step", "last step"), SURE: ("0% sure", "100% sure")}

CSS = """
.tl-text { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.9; font-size: 1rem; margin: 0 0 .8rem; }
.tl-text span { border-radius: 3px; padding: .1em 0; }
.tl-numbers span { padding: .1em .25em; margin: 0 .1em; display: inline-block; }
.tl-mask { opacity: .55; }
.tl-given { border-bottom: 3px solid rgb(230 120 30); font-weight: 600; }
.tl-pictures { display: flex; flex-wrap: wrap; gap: 12px; }
.tl-pictures figure { margin: 0; }
.tl-pictures img { image-rendering: pixelated; width: 112px; border: 1px solid #8888; margin-right: 4px; display: inline-block; }
.tl-legend { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem 1rem; font-size: .85rem; margin: .4rem 0; }
.tl-legend i { display: inline-block; width: 8rem; height: .8rem; border-radius: 3px; margin: 0 .4rem;
  background: linear-gradient(90deg, rgb(68 1 84 / .6), rgb(59 82 139 / .6), rgb(33 145 140 / .6), rgb(94 201 98 / .6),
  rgb(253 231 37 / .6)); }
.tl-scroll { overflow-x: auto; margin: .8rem 0; }
.tl-scroll :is(table, thead, tbody, tr) { border: 0 !important; }
.tl-scroll table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
.tl-scroll :is(th, td) { text-align: right; padding: .25rem .6rem; white-space: nowrap; border: 0 !important;
  border-bottom: 1px solid #8884 !important; }
.tl-scroll :is(th, td):first-child { text-align: left; }
.tl-bars { display: grid; grid-template-columns: max-content 1fr; gap: .6rem; align-items: center; }
.tl-bars b { font-weight: 400; font-family: ui-monospace, monospace; }
.tl-bar { display: block; height: .5rem; margin: 1px 0; border-radius: 2px; }
.tl-error { border-left: 4px solid #dc2626; padding: .3rem .6rem; }
.tl-stale { border-left: 4px solid #d97706; padding: .3rem .6rem; }
.tl-lanes { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 220px), 1fr)); gap: 1rem; }
.tl-lanes .tl-legend i { width: 4rem; }
.tl-lanes h3 { margin: 0 0 .4rem; overflow-wrap: anywhere; font-size: 1rem; }
.tl-figure { width: 100%; min-width: 600px; background: white; border-radius: 4px; }
.tl-status progress { width: 12rem; max-width: 100%; vertical-align: middle; }
.tl-tab:has(.tl-stale) .tl-result { opacity: .45; }
:is(a, button, input, textarea, [role=button], [tabindex]):focus-visible { outline: 2px solid #3b82f6 !important; outline-offset: 1px; }
.form > .block > label { display: flex; flex-direction: column; height: 100%; }
.form > .block > label > :last-child { margin-top: auto; }
body:not(.dark) [role=tab][aria-selected=true] { color: #c2410c; }
body:not(.dark) .tl-code :is(.cm-content, .cm-gutterElement) { filter: brightness(.55); }
"""


def colour(share: float) -> str:
    """The colour of a number from 0 to 1, light enough to read on."""
    red, green, blue = _on_scale(torch.tensor([share]))[0].tolist()
    return f"rgb({red} {green} {blue} / .4)"


def _on_scale(shares: Tensor) -> Tensor:
    at = shares.nan_to_num(0.0).clamp(0, 1).to(torch.float64) * (len(SCALE) - 1)
    low = at.floor().clamp_max(len(SCALE) - 2).long()
    part = (at - low).unsqueeze(-1)
    return (SCALE[low] * (1 - part) + SCALE[low + 1] * part).round().long()


# --- samples


def samples(film: Film, step: int) -> str:
    """The samples after `step`: the colour of a token says when it was written or, if that is known, how sure the model
    was."""
    when, sure = film.when(step), film.sure
    last = max(1, len(film.moments) - 1)
    shares = when / last if sure is None else sure.gather(0, when.unsqueeze(0))[0]
    x = film.moments[step].x.cpu()
    draw = _pictures if has_pictures(unwrapped(film.model)) else _lines
    legend = LEGENDS[WHEN if sure is None else SURE]
    return draw(film, x, when, shares) + _legend(*legend, given=bool(film.given.any()), masks=film.model.process.mask)


def _legend(low: str, high: str, given: bool, masks: int | None) -> str:
    parts = [f"<span>{low}<i></i>{high}</span>"]
    parts += [f"<span>{MASK} masked</span>"] * (masks is not None)
    parts += ['<span class="tl-given">given</span>'] * given
    return f'<div class="tl-legend">{"".join(parts)}</div>'


def _lines(film: Film, x: Tensor, when: Tensor, shares: Tensor) -> str:
    """Text, or numbers where a model has none."""
    tokenizer = getattr(film.model, "tokenizer", None)
    made = []
    for row, steps, values in zip(x.tolist(), when.tolist(), shares.tolist(), strict=True):
        spans = []
        for place, text in enumerate(pieces(tokenizer, row, film.model.process.mask)):
            spans.append(
                _span(text, row[place] == film.model.process.mask, film.given[place], steps[place], values[place])
            )
        kind = "tl-text" if tokenizer is not None else "tl-text tl-numbers"
        made.append(f'<p class="{kind}">{"".join(spans)}</p>')
    return "".join(made)


def _span(text: str, masked: bool, given: Any, step: int, value: float) -> str:
    if masked:
        return f'<span class="tl-mask">{text}</span>'
    if given:
        return f'<span class="tl-given" title="given">{escape(text)}</span>'
    known = "" if value != value else f' style="background:{colour(value)}"'
    return f'<span title="step {step}"{known}>{escape(text)}</span>'


def pieces(tokenizer: Any, row: Sequence[int], mask: int | None) -> Iterator[str]:
    """The text of each token of a sample that is not finished: as it reads behind the token before it."""
    before: list[int] = []
    for token in row:
        if token == mask:
            before = []
            yield MASK
        elif tokenizer is None:
            yield str(token)
        else:
            alone, start = tokenizer.decode([token]), tokenizer.decode(before) if before else ""
            both = tokenizer.decode([*before, token]) if before else alone
            yield both[len(start) :] if both.startswith(start) else alone
            before = [token]


def _pictures(film: Film, x: Tensor, when: Tensor, shares: Tensor) -> str:
    """Each sample as a picture, and beside it the colours of its positions."""
    model, mask = unwrapped(film.model), film.model.process.mask
    shape = tuple(getattr(model, "shape", ()))
    made = []
    for n, row in enumerate(x):
        left = int((row == mask).sum()) if mask is not None else 0
        masked = row == mask if mask is not None else torch.zeros_like(row, dtype=torch.bool)
        tints = _on_scale(shares[n])
        tints[film.given] = torch.tensor(GIVEN)
        tints[masked] = torch.tensor(MASKED)
        views = {"colours": tints.view(*shape, 3)}
        if getattr(model, "pictures", None) is None:
            grey = (
                (row.clamp_max(model.process.states - 1) * 255 // (model.process.states - 1)).unsqueeze(1).repeat(1, 3)
            )
            grey[masked] = torch.tensor(MASKED)
            views = {"picture": grey.view(*shape, 3), **views}
        elif left == 0:
            views = {"picture": (pictures(model, row.unsqueeze(0))[0] * 255).round().permute(1, 2, 0), **views}
        told = f"sample {n}, {len(row) - left} of {len(row)} positions"
        made.append(
            f"<figure>{''.join(image(view.numpy(), f'{told}: {name}') for name, view in views.items())}</figure>"
        )
    return f'<div class="tl-pictures">{"".join(made)}</div>'


def image(pixels: np.ndarray, about: str) -> str:
    """Colours from 0 to 255 as an image that is part of the page."""
    from matplotlib.image import imsave

    file = BytesIO()
    imsave(file, np.ascontiguousarray(pixels.astype(np.uint8)), format="png")
    return _img(file.getvalue(), about)


def figure(drawn: Any, about: str) -> str:
    """A figure of matplotlib as an image that is part of the page, and can be scrolled where that is narrow."""
    file = BytesIO()
    drawn.savefig(file, format="png", dpi=110, bbox_inches="tight")
    return f'<div class="tl-scroll" tabindex="0">{_img(file.getvalue(), about, "tl-figure")}</div>'


def _img(png: bytes, about: str, kind: str = "") -> str:
    return f'<img class="{kind}" alt="{escape(about)}" src="data:image/png;base64,{b64encode(png).decode()}">'


# --- lines, tables and bars


def error(text: str) -> str:
    """A line that says what is wrong."""
    return f'<div class="tl-status {ERROR}" role="alert">{escape(text)}</div>'


def stale(text: str) -> str:
    """A line that says that what is shown is of other settings."""
    return f'<div class="tl-status {STALE}" role="status">{escape(text)}</div>'


def line(text: str, share: float | None = None) -> str:
    """How far the work is."""
    bar = "" if share is None else f'<progress max="1" value="{share:.3f}"></progress> '
    return f'<div class="tl-status" role="status">{bar}{escape(text)}</div>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], about: str) -> str:
    """A table that can be scrolled on its own where the page is narrow."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    caption = f'<div class="tl-scroll" tabindex="0" role="region" aria-label="{escape(about)}">'
    return f"{caption}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def bars(labels: Sequence[str], laws: dict[str, Sequence[float]], colours: Sequence[str]) -> str:
    """Probabilities as bars, for each label one of each law, with the number where the mouse is."""
    top = max(max(values) for values in laws.values())
    key = "".join(
        f'<span><i style="background:{tint};width:1.2rem"></i>{escape(name)}</span>'
        for name, tint in zip(laws, colours, strict=False)
    )
    rows = []
    for n, label in enumerate(labels):
        strips = "".join(
            f'<span class="tl-bar" title="{escape(name)}: {values[n]:.6f}" '
            f'style="width:{100 * values[n] / top:.2f}%;background:{tint}"></span>'
            for (name, values), tint in zip(laws.items(), colours, strict=False)
        )
        rows.append(f"<b>{escape(label)}</b><span>{strips}</span>")
    return f'<div class="tl-legend">{key}</div><div class="tl-bars">{"".join(rows)}</div>'
