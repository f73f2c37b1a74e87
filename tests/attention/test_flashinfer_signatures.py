"""Every call that is made of FlashInfer, held against the signatures of the package itself.

The package imports without a GPU, its wrappers cannot be built there: the calls are made of the
stand-in, and each is bound to the real signature.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch

from radixserve.models.rotary import RotaryTable
from radixserve.models.rotary_config import RotarySpec
from tests.attention.flashinfer_stand_in import StandInPackage
from tests.attention.test_flashinfer import decodes, make_cascade, make_layer, prefill, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.attention.flashinfer_stand_in import Call

flashinfer = pytest.importorskip("flashinfer", reason="the package flashinfer is not installed")

PREFILL = flashinfer.BatchPrefillWithPagedKVCacheWrapper
DECODE = flashinfer.BatchDecodeWithPagedKVCacheWrapper
TARGETS: dict[str, Callable[..., Any]] = {
    "prefill.__init__": PREFILL.__init__,
    "prefill.plan": PREFILL.plan,
    "prefill.run": PREFILL.run,
    "decode.__init__": DECODE.__init__,
    "decode.plan": DECODE._plan_impl,  # `plan` itself takes any keyword and hands it on
    "decode.run": DECODE.run,
}
FUNCTIONS = (
    "merge_state",
    "rmsnorm",
    "fused_add_rmsnorm",
    "silu_and_mul",
    "apply_rope_with_cos_sin_cache_inplace",
)
TARGETS |= {name: getattr(flashinfer, name) for name in FUNCTIONS}


def every_call() -> list[Call]:
    """Return the calls that batches of each kind make, eager and in a graph."""
    package = StandInPackage()
    backend = make_cascade([make_layer()], 4, package=package)
    for metadata in (decodes(1), prefill(), decodes(3)):
        backend.plan(metadata)
        run(backend, metadata.num_tokens)
    graph = backend.for_graph(2)
    graph.plan(decodes(2))
    run(graph, 2)
    eight_bit = make_cascade([make_layer(torch.float8_e4m3fn)], 4, package=package)
    eight_bit.plan(prefill())
    run(eight_bit, 3)
    run_every_operation(package)
    return [call for call in package.calls if not call.name.startswith("event.")]


def run_every_operation(package: StandInPackage) -> None:
    """Call each small operation of a layer of 4 query heads and 2 KV heads once."""
    ops = package.ops()
    x, share = (torch.randn(3, 512, dtype=torch.bfloat16) for _ in range(2))
    weight = torch.ones(512, dtype=torch.bfloat16)
    heads = ops.norm(x, weight, 1e-5).view(3, 8, 64)
    ops.norm_heads_(heads[:, :4], weight[:64], 1e-5)
    ops.rotation(RotaryTable(RotarySpec(), head_dim=64, max_position=8), torch.arange(3)).rotate_(
        heads[:, :6], 4
    )
    ops.silu_mul(ops.add_norm(share, x, weight, 1e-5))


CALLS = every_call()


def bind(call: Call) -> inspect.BoundArguments:
    """Return the call's arguments by the names that the real package gives them."""
    of_what = () if call.name in FUNCTIONS else (None,)
    signature = inspect.signature(inspect.unwrap(TARGETS[call.name]))
    return signature.bind(*of_what, *call.args, **call.kwargs)


def test_each_function_of_the_package_that_is_used_is_called() -> None:
    assert {call.name for call in CALLS} == set(TARGETS)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_call_binds_to_the_real_signature(name: str) -> None:
    for call in CALLS:
        if call.name != name:
            continue
        bound = bind(call)
        caught_all = [
            parameter.name
            for parameter in bound.signature.parameters.values()
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and bound.arguments.get(parameter.name)
        ]
        assert not caught_all, "an argument went where anything goes"


def test_what_is_passed_by_place_is_what_the_package_calls_it() -> None:
    by_name = {name: bind(next(c for c in CALLS if c.name == name)).arguments for name in TARGETS}

    assert by_name["prefill.__init__"]["kv_layout"] == "NHD"
    assert by_name["decode.__init__"]["kv_layout"] == "NHD"
    for name, head_dim in (("prefill.plan", "head_dim_qk"), ("decode.plan", "head_dim")):
        arguments = by_name[name]
        assert arguments["num_qo_heads"] == 4
        assert arguments["num_kv_heads"] == 2
        assert arguments[head_dim] == 64
        assert arguments["page_size"] == 4
    plan = by_name["prefill.plan"]
    assert len(plan["qo_indptr"]) == len(plan["paged_kv_indptr"])
    assert len(plan["paged_kv_last_page_len"]) == len(plan["qo_indptr"]) - 1
    assert len(plan["paged_kv_indices"]) == int(plan["paged_kv_indptr"][-1])
    plan = by_name["decode.plan"]
    assert len(plan["indices"]) == int(plan["indptr"][-1])
    assert len(plan["last_page_len"]) == len(plan["indptr"]) - 1
    merge = by_name["merge_state"]
    assert merge["v_a"].dim() == merge["v_b"].dim() == 3
    assert merge["s_a"].dim() == merge["s_b"].dim() == 2
    for name in ("rmsnorm", "fused_add_rmsnorm"):
        assert by_name[name]["weight"].dim() == 1
        assert by_name[name]["eps"] == 1e-5
    rope = by_name["apply_rope_with_cos_sin_cache_inplace"]
    assert rope["positions"].dtype == torch.int64
    assert rope["query"].shape == (3, 4 * 64)
    assert rope["key"].shape == (3, 2 * 64)
    assert rope["head_size"] == 64
    assert rope["cos_sin_cache"].shape == (8, 64)
    assert rope["is_neox"] is True


def test_plan_hands_every_keyword_of_a_decode_on_to_what_is_checked_here() -> None:
    kinds = {p.kind for p in inspect.signature(inspect.unwrap(DECODE.plan)).parameters.values()}

    assert inspect.Parameter.VAR_KEYWORD in kinds


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("prefill.plan", {"causal": False, "q_data_type": "float16", "window_left": -1}),
        ("decode.plan", {"q_data_type": "float16", "window_left": -1, "q_len_per_req": 1}),
        ("prefill.run", {"lse_base": "log2", "lse_layout": "NH"}),
        ("rmsnorm", {"enable_pdl": None}),
        ("fused_add_rmsnorm", {"enable_pdl": None}),
        ("silu_and_mul", {"out": None, "enable_pdl": None}),
    ],
)
def test_the_defaults_that_are_relied_on_or_worked_around_are_still_those(
    name: str, defaults: dict[str, Any]
) -> None:
    parameters = inspect.signature(inspect.unwrap(TARGETS[name])).parameters

    assert {key: parameters[key].default for key in defaults} == defaults


def test_a_rotation_overlaps_no_kernel_before_it() -> None:
    """It has no switch for that: it waits for all that was launched, as torch's kernels do."""
    rope = inspect.signature(inspect.unwrap(TARGETS["apply_rope_with_cos_sin_cache_inplace"]))

    assert "enable_pdl" not in rope.parameters


def test_the_version_is_the_one_that_was_read() -> None:
    assert flashinfer.__version__ == "0.7.2.post1"
