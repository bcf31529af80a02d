"""Compiled layers and traced steps, for the architectures and combinations that the suite leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_train.tiny.architectures import Architecture
from tests.rollout.native import conftest, test_compile, test_slots
from tests.train.test_compiling import test_traced_blocks_give_the_same_gradients as traced_blocks

compiler, layout = test_compile.compiler, conftest.layout


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_compiled_greedy_equals_generate(architecture: Architecture, compiler: Any) -> None:
    test_compile.test_greedy_equals_generate(architecture, compiler)


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_a_decoding_step_is_one_graph(architecture: Architecture, layout: str) -> None:
    test_slots.test_a_decoding_step_is_one_graph_per_number_of_rows(architecture, layout)


@pytest.mark.parametrize(
    ("adapter", "packing", "recomputed"), [("none", False, False), ("none", False, True), ("lora", True, False)]
)
def test_traced_blocks(monkeypatch: pytest.MonkeyPatch, adapter: str, packing: bool, recomputed: bool) -> None:
    traced_blocks(monkeypatch, adapter, packing, recomputed)
