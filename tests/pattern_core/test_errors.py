from __future__ import annotations

from collections.abc import Iterator

import pytest

from pattern_core import errors
from pattern_core.errors import InvalidInput, NotFound, PatternError, instead_of
from pattern_db.errors import RowConflict, RowNotFound


def tree(root: type[PatternError]) -> Iterator[type[PatternError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


OURS = [kind for kind in tree(PatternError) if kind.__module__.startswith("pattern_core")]


def test_codes_are_stable_words_and_each_its_own() -> None:
    codes = [kind.code for kind in OURS if "code" in vars(kind)]  # a finer distinction within may keep its parent's
    assert len(set(codes)) == len(codes)
    assert all(code.replace("_", "").isalpha() and code.islower() for code in codes)


def test_the_tree_in_the_docstring_names_every_class() -> None:
    here = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, PatternError)]
    assert {"InvalidInput", "NotFound", "Unavailable"} <= set(here)
    assert [name for name in here if name not in (errors.__doc__ or "")] == []


def test_the_leaves_of_groups_within_groups() -> None:
    first, second = ValueError("a"), KeyError("b")
    assert list(errors.leaves(ExceptionGroup("", [ExceptionGroup("", [first]), second]))) == [first, second]


def test_an_error_of_storage_becomes_ours_and_another_kind_stays() -> None:
    with pytest.raises(NotFound, match="gone") as caught, instead_of(RowNotFound, NotFound("gone")):
        raise RowNotFound("there is no row 3")
    assert caught.value.__suppress_context__
    with pytest.raises(RowConflict), instead_of(RowNotFound, InvalidInput("not this one")):
        raise RowConflict("in use")
