"""Run every benchmark."""

from . import planned_chain, toy_loop

toy_loop.main()
planned_chain.main()
