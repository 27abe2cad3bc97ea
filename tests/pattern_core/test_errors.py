from __future__ import annotations

from collections.abc import Iterator

import pytest

from pattern_core import errors
from pattern_core.errors import Conflict, IdempotencyMismatch, PatternError
from pattern_core.models import errors as model_errors


def tree(root: type[PatternError]) -> Iterator[type[PatternError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


OURS = [kind for kind in tree(PatternError) if kind.__module__.startswith("pattern_core")]


def test_codes_are_stable_words_and_each_its_own() -> None:
    codes = [kind.code for kind in OURS if "code" in vars(kind)]  # a finer distinction within may keep its parent's
    assert len(set(codes)) == len(codes)
    assert all(code.replace("_", "").isalpha() and code.islower() for code in codes)


def test_the_models_errors_belong_to_the_tree() -> None:
    assert issubclass(model_errors.ModelError, PatternError)
    assert model_errors.ModelTimeout in OURS


@pytest.mark.parametrize("kind", [kind for kind in OURS if kind.__module__ == "pattern_core.errors"])
def test_an_error_has_words_for_people_and_data_for_programs(kind: type[PatternError]) -> None:
    error = kind("try again later", retry_after_s=5)
    assert (str(error), error.message, error.details) == ("try again later", "try again later", {"retry_after_s": 5})
    assert kind("words").details == {}
    assert kind.__doc__


def test_a_mismatch_is_a_conflict() -> None:
    with pytest.raises(Conflict):
        raise IdempotencyMismatch("the key was used")
    assert IdempotencyMismatch.code != Conflict.code


def test_the_tree_in_the_docstring_names_every_class() -> None:
    here = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, PatternError)]
    assert {"InvalidInput", "NotFound", "Unavailable"} <= set(here)
    assert [name for name in here if name not in (errors.__doc__ or "")] == []


def test_the_leaves_of_groups_within_groups() -> None:
    first, second = ValueError("a"), KeyError("b")
    assert list(errors.leaves(ExceptionGroup("", [ExceptionGroup("", [first]), second]))) == [first, second]
