"""Text and digits as they are unmasked.

`on_step` is called with the samples after every step; here each call becomes a frame. A token is orange when it is
written, and turns black.
"""

# %%
import torch
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

import thetaleap as tl

STEPS = 24
WARM = [(224, 123, 0), (190, 104, 0), (150, 82, 0), (100, 55, 0), (55, 30, 0)]


# %%
def watched(model, every=1, **options):
    """The samples of a run at every step, or at some, (step, sample, position)."""
    moments = []
    tl.sample(model, on_step=lambda moment: moments.append(moment.x.clone()), **options)
    return torch.stack(moments)[::every][: STEPS + 1]


words = tl.load("shakespeare")
text = watched(words, nfe=2 * STEPS, seed=14, prompt="ROMEO:\n")[:, 0]  # two evaluations per step
digits = watched(tl.guided(tl.load("mnist"), 0.0, [1, 2, 3, 4, 5, 6, 7, 8, 9]), every=4, nfe=4 * STEPS, num=9, seed=2)

# %%
font = ImageFont.truetype(font_manager.findfont("DejaVu Sans Mono"), 15)
across, down = font.getlength("x"), 20


def colour(age: int) -> tuple[int, int, int]:
    """Of a token that was written so many steps ago."""
    return WARM[age] if age < len(WARM) else (20, 20, 20)


def frame(step: int) -> Image.Image:
    """The state after a step."""
    picture = ImageDraw.Draw(image := Image.new("RGB", (860, 250), "white"))
    row, column = 0, 0
    for place, token in enumerate(text[-1].tolist()):
        written = int((text[:, place] == words.process.mask).sum())  # the step after which it was there
        for letter in words.tokenizer.decode([token]):
            if letter == "\n" or column == 58:
                row, column = row + 1, 0
            if letter != "\n" and row < 12:
                at = (12 + column * across, 8 + row * down)
                if step >= written:
                    picture.text(at, letter, colour(step - written), font)
                else:
                    picture.rectangle([at[0] + 1, at[1] + 5, at[0] + across - 1, at[1] + 15], (225, 229, 238))
                column += 1
    for n, x in enumerate(digits[step]):
        tokens = x.view(14, 14)
        for y, line in enumerate(tokens.tolist()):
            for z, grey in enumerate(line):
                left, top = 590 + (n % 3) * 80 + 5 * z, 8 + (n // 3) * 80 + 5 * y
                shade = (225, 229, 238) if grey == 8 else (255 - 34 * grey,) * 3
                picture.rectangle([left, top, left + 4, top + 4], shade)
    return image


frames = [frame(step) for step in range(STEPS + 1)]
small = [one.quantize(32, dither=Image.Dither.NONE) for one in frames]
pauses = [700, *[140] * (STEPS - 1), 3500]
small[0].save("animation.gif", save_all=True, append_images=small[1:], duration=pauses, loop=0)
