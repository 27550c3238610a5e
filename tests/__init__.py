"""The type checker of the test run: shapes by jaxtyping, the rest by beartype; an int may stand for a float."""

from beartype import BeartypeConf, beartype

checker = beartype(conf=BeartypeConf(is_pep484_tower=True))
