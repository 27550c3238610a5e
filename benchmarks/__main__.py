"""Run every benchmark."""

from . import toy_loop

toy_loop.main()
