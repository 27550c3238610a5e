"""Short programs that show the library at work; `python -m examples` runs them all."""
