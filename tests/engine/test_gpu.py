"""The runtime as it is fitted together for a GPU, on a CPU: kernels, capture and memory are stood
in for, by what computes the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from radixserve.attention.kv_writer import KVScale
from radixserve.attention.reference import ReferenceAttention
from radixserve.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from radixserve.core.plan import BlockSwap, SamplingState, ScheduledReq, StepPlan
from radixserve.engine import build as engine_build
from radixserve.engine import gpu as engine_gpu
from radixserve.engine.gpu import GpuParts, build_gpu_compute
from radixserve.engine.pipeline import StepPipeline
from radixserve.engine.sync_engine import Engine
from radixserve.errors import BackendUnavailableError, ConfigError
from radixserve.models.loader import load_model
from radixserve.runtime.device_memory import DeviceMemory
from radixserve.runtime.host_kv import HostKV
from radixserve.runtime.kv_cache import KVCache
from radixserve.runtime.launch import ImmediateLauncher
from radixserve.runtime.model_runner import ModelRunner
from radixserve.runtime.sampler import Sampler
from radixserve.types import ReqId, SamplingParams, TokenId, pack_ids
from tests.attention.flashinfer_stand_in import StandInPackage
from tests.kit.engines import ask, assert_idle
from tests.kit.plain_capture import PlainCapture
from tests.kit.tiny_model import write_tiny_model
from tests.kit.tiny_tokenizer import write_tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from radixserve.engine.compute import Compute
    from radixserve.engine.request import GenerateRequest
    from radixserve.models.loader import LoadedModel

CPU = torch.device("cpu")
MIB = 2**20
BLOCK_SIZE = 16
SHARED_LEN = 512
GREEDY = SamplingParams(temperature=0.0, logprobs=20)
TOLERANCE = 0.1
"""Of a log-probability: the sums are those of bfloat16, in another order."""
SETTINGS = EngineConfig(
    cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=80),
    scheduler=SchedulerConfig(max_num_seqs=12, max_num_batched_tokens=600),
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A tiny model that FlashInfer could take."""
    folder = write_tiny_model(tmp_path_factory.mktemp("gpu"), head_dim=64)
    return load_model(folder, dtype=torch.bfloat16)


class Bench:
    """The GPU's runtime, and what happened in it."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig = SETTINGS) -> None:
        self.package, self.capture = StandInPackage(), PlainCapture()
        self.num_profiles = 0
        parts = GpuParts(
            kernels=self.package.kernels(),
            ops=self.package.ops(),
            make_capture=lambda: self.capture,
            measure=self.measure,
            seconds=self.seconds,
        )
        self.compute: Compute = build_gpu_compute(
            config,
            loaded,
            CPU,
            vocab_size=500,
            make_host_kv=lambda pool: HostKV.allocate_beside(pool, 4),
            parts=parts,
        )

    def seconds(self, device: torch.device, action: Callable[[], object]) -> float:
        """Everything takes a second: launches cost nothing more, so any sharing is worth it."""
        action()
        return 1.0

    def measure(self, device: torch.device, largest_step: Callable[[], object]) -> DeviceMemory:
        largest_step()
        self.num_profiles += 1
        return DeviceMemory(total_bytes=300 * MIB, free_bytes=280 * MIB, step_bytes=MIB)


def plain_runner(loaded: LoadedModel) -> ModelRunner:
    pool = KVCache.allocate(loaded.spec, 80, BLOCK_SIZE, torch.bfloat16)
    attention = ReferenceAttention(pool.layers, num_qo_heads=loaded.spec.num_qo_heads)
    return ModelRunner(loaded.model, pool, attention, Sampler(500))


def prompt_of(row: int) -> list[TokenId]:
    """Even rows begin alike, for 512 tokens."""
    own = [(17 * row * row + 29 * place + 3) % 500 for place in range(5)]
    return [(13 * i * i + 7) % 500 for i in range(SHARED_LEN)] + own if row % 2 == 0 else own


def table_of(row: int) -> list[int]:
    shared = list(range(40, 40 + SHARED_LEN // BLOCK_SIZE)) if row % 2 == 0 else []
    return [*shared, 20 - row]


def share(row: int, tokens: list[TokenId], start: int, output_len: int = 0) -> ScheduledReq:
    params = (
        GREEDY if row < 8 else SamplingParams(temperature=1.3, top_p=0.8, seed=row, logprobs=20)
    )
    sampling = SamplingState(params, output_len)
    table = pack_ids(table_of(row))
    return ScheduledReq(ReqId(f"r{row}"), pack_ids(tokens), start, table, sampling)


def plans(outputs: list[list[TokenId]]) -> list[StepPlan]:
    """A prompt, then 17 more of which the even ones share its blocks, then decodes, whatever the
    runner would have chosen."""
    rows = range(18)
    first = [share(0, prompt_of(0), 0)]
    second = [share(r, prompt_of(r)[(s := SHARED_LEN * (r % 2 == 0)) :], s) for r in rows[1:]]
    decodes = [
        [share(r, [outputs[r][n]], len(prompt_of(r)) + n, 1 + n) for r in reversed(rows)]
        for n in range(3)
    ]
    alone = [share(3, [outputs[3][3]], len(prompt_of(3)) + 3, 4)]
    return [
        StepPlan(n, tuple(reqs)) for n, reqs in enumerate([first, second, *decodes, alone], start=1)
    ]


def test_the_gpus_runtime_finds_the_same_tokens_as_likely_as_the_plain_one(
    loaded: LoadedModel,
) -> None:
    config = replace(SETTINGS, scheduler=SchedulerConfig(max_num_seqs=20))
    bench, plain = Bench(loaded, config), plain_runner(loaded)
    num_equal = num_rows = 0

    for plan in plans([[(7 * row + n) % 500 for n in range(4)] for row in range(18)]):
        ours, theirs = bench.compute.launcher.launch(plan).result(), plain.execute(plan)
        for row in range(len(plan.reqs)):
            near = dict(ours.logprobs[row].top)
            for token, logprob in theirs.logprobs[row].top[:10]:
                assert near[token] == pytest.approx(logprob, abs=TOLERANCE)
        num_equal += sum(a == b for a, b in zip(ours.next_tokens, theirs.next_tokens, strict=True))
        num_rows += len(plan.reqs)

    assert num_equal > 0.9 * num_rows
    assert "merge_state" in bench.package.names(), "what nine rows share is read once"
    assert bench.capture.num_replays >= 1, "the last step is a decode of one"


def test_the_layers_small_operations_are_the_packages(loaded: LoadedModel) -> None:
    counts = Counter(Bench(loaded).package.names())

    passes = counts["rmsnorm"]  # the one before any layer has given its share
    assert passes > 5, "one a graph, at least"
    assert counts["fused_add_rmsnorm"] == 4 * passes
    assert counts["apply_rope_with_cos_sin_cache_inplace"] == 2 * passes
    assert counts["silu_and_mul"] == 2 * passes


def test_without_a_gpu_the_packages_operations_are_refused(loaded: LoadedModel) -> None:
    with pytest.raises(BackendUnavailableError, match="runs on a CUDA device only"):
        build_gpu_compute(
            SETTINGS,
            loaded,
            CPU,
            vocab_size=500,
            make_host_kv=lambda pool: None,
            parts=GpuParts(kernels=StandInPackage().kernels()),
        )


def test_graphs_are_captured_for_every_bucket(loaded: LoadedModel) -> None:
    bench = Bench(loaded)

    assert [shape[0] for shape in bench.capture.shapes] == [12, 8, 4, 2, 1]


def test_the_pool_has_a_dummy_block_beyond_those_that_are_told_of(loaded: LoadedModel) -> None:
    pool = Bench(loaded).compute.kv_cache

    assert pool.num_blocks == pool.dummy_block == 80


def test_the_pool_is_sized_after_the_largest_step_was_run(loaded: LoadedModel) -> None:
    cache = CacheConfig(block_size=BLOCK_SIZE, gpu_memory_utilization=0.5)
    bench = Bench(loaded, replace(SETTINGS, cache=cache))
    pool = bench.compute.kv_cache

    # Half of 300 MiB, less the 20 that are taken, 1 for a step, 16 for each of five graphs, and
    # the 6 that stay free.
    per_block = sum(half[0].nbytes for layer in pool.layers for half in (layer.k, layer.v))
    assert pool.num_blocks + 1 == (150 - 20 - 1 - 5 * 16 - 6) * MIB // per_block
    assert bench.num_profiles == 1


def test_a_context_that_was_asked_for_and_does_not_fit_is_refused(loaded: LoadedModel) -> None:
    config = replace(
        SETTINGS,
        model=ModelConfig(max_model_len=2000),
        cache=CacheConfig(block_size=BLOCK_SIZE, kv_cache_memory_bytes=MIB // 2),
    )
    with pytest.raises(ConfigError, match=r"must hold 2000 tokens.* What would fit: max_model_len"):
        Bench(loaded, config)


def test_int8_weights_are_refused(loaded: LoadedModel) -> None:
    config = replace(SETTINGS, model=ModelConfig(quantization="int8"))

    with pytest.raises(ConfigError, match="needs the native kernels"):
        Bench(loaded, config)


def test_what_levels_must_spare_is_measured(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken = iter([3.0, 1.0, 0.5])  # launched, replayed, copied

    def seconds(bench: Bench, device: torch.device, action: Callable[[], object]) -> float:
        action()
        return next(taken)

    monkeypatch.setattr(Bench, "seconds", seconds)
    with caplog.at_level("INFO"):
        pool = Bench(loaded).compute.kv_cache

    num_bytes = sum(half.nbytes for layer in pool.layers for half in layer.tensors)
    num_tokens = 2 * (num_bytes / 0.5) // (num_bytes // (81 * BLOCK_SIZE))
    assert f"where that spares {num_tokens:.0f} tokens or more" in caplog.text


def test_a_step_that_is_small_for_a_gpu_is_told(
    loaded: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    Bench(loaded)
    assert "max_num_batched_tokens" in caplog.text


def test_swaps_go_through_the_runner(loaded: LoadedModel) -> None:
    compute = Bench(loaded).compute
    layer = compute.kv_cache.layers[1]
    layer.k[7] = 3.0
    out = BlockSwap(ReqId("r"), pack_ids([7]), pack_ids([2]))

    compute.launcher.launch(StepPlan(1, (), swap_outs=(out,))).result()
    layer.k[7] = 0.0
    compute.launcher.launch(StepPlan(2, (), swap_ins=(out,))).result()

    assert layer.k[7].eq(3.0).all()


def test_scales_that_the_model_brings_are_what_8_bit_kv_is_stored_with(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_gpu, "choose_kv_dtype", lambda *_: torch.float8_e4m3fn)
    scales = (KVScale(0.5, 0.25), KVScale(2.0, 1.5))
    bench = Bench(replace(loaded, kv_scales=scales))

    runs = [call.kwargs for call in bench.package.calls if call.name.endswith(".run")]

    assert [(run["k_scale"], run["v_scale"]) for run in runs[-2:]] == [(0.5, 0.25), (2.0, 1.5)]


def test_a_model_of_few_positions_is_measured_within_them(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, head_dim=64, max_position_embeddings=64)
    short = load_model(folder, dtype=torch.bfloat16)

    assert Bench(short).num_profiles == 1


# -- the whole engine --------------------------------------------------------------------------


@pytest.fixture
def make_gpu_engine(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Engine]:
    """Build engines whose steps are computed by the GPU's runtime."""
    folder = write_tiny_model(tmp_path_factory.mktemp("engine"), head_dim=64)
    write_tiny_tokenizer(folder)

    def build(
        config: EngineConfig, loaded: LoadedModel, device: torch.device, vocab_size: int
    ) -> Compute:
        return build_gpu_compute(
            config,
            loaded,
            device,
            vocab_size=vocab_size,
            make_host_kv=lambda pool: HostKV.allocate_beside(pool, 16),
            parts=GpuParts(
                kernels=StandInPackage().kernels(),
                ops=StandInPackage().ops(),
                make_capture=PlainCapture,
                seconds=lambda device, action: 1.0,
                measure=lambda device, step: DeviceMemory(
                    total_bytes=300 * MIB, free_bytes=280 * MIB, step_bytes=MIB
                ),
            ),
        )

    monkeypatch.setattr(engine_build, "_build_compute", build)

    def make(*, num_blocks: int = 256, **scheduler: Any) -> Engine:
        config = EngineConfig(
            model=ModelConfig(model=str(folder), dtype="bfloat16"),
            cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks),
            scheduler=SchedulerConfig(**scheduler),
            num_threads=1,
            seed=0,
        )
        return Engine(config=config)

    return make


def in_step(engine: Engine) -> Engine:
    """Let an engine that has not begun compute each step before it plans the next."""
    engine.core._pipeline = StepPipeline(ImmediateLauncher(engine.core._runner))
    return engine


def known(ids: list[TokenId]) -> list[TokenId]:
    """Return ids that the engine's tokenizer has."""
    return [3 + token % 320 for token in ids]


def requests_that_share(kind: SamplingParams, number: int = 10) -> list[GenerateRequest]:
    return [
        ask(known(prompt_of(2 * row)[: SHARED_LEN + 1 + row % 4]), params=replace(kind, seed=row))
        for row in range(number)
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_steps_ahead_have_the_tokens_of_steps_one_by_one(
    temperature: float, make_gpu_engine: Callable[..., Engine]
) -> None:
    """Prompts, levels, graphs and void rows; the batches are the same, so rounding is too."""
    kind = SamplingParams(temperature=temperature, top_p=0.9, max_tokens=12)
    requests = requests_that_share(kind)
    ahead, plain = make_gpu_engine(), in_step(make_gpu_engine())

    ours, expected = ahead.run(requests), plain.run(requests)

    assert [c.token_ids for c in ours] == [c.token_ids for c in expected]
    assert plain.stats().steps_ahead == 0
    assert ahead.stats().steps_ahead >= 8
    assert_idle(ahead.core)


def test_a_stop_token_in_a_step_that_has_a_follower_ends_the_output_there(
    make_gpu_engine: Callable[..., Engine],
) -> None:
    kind = SamplingParams(temperature=0.0, max_tokens=12)
    [alone] = make_gpu_engine().run([ask(known(prompt_of(1)), params=kind)])
    stop = alone.token_ids[5]
    stopped = replace(kind, stop_token_ids=frozenset({stop}))
    engine = make_gpu_engine()

    [completion] = engine.run([ask(known(prompt_of(1)), params=stopped)])

    assert completion.token_ids == alone.token_ids[: alone.token_ids.index(stop) + 1]
    assert engine.stats().steps_ahead > 0
    assert_idle(engine.core)


def test_the_time_of_the_model_is_what_is_waited_for(
    make_gpu_engine: Callable[..., Engine],
) -> None:
    engine = make_gpu_engine()
    engine.run([ask(known(prompt_of(1)), max_tokens=6)])

    spent = engine.core.times.seconds
    assert spent["launch"] > 0
    assert spent["wait"] > 0
    assert spent["forward"] == spent["logits"] == 0


def test_requests_that_need_the_host_between_steps_are_computed_step_by_step(
    make_gpu_engine: Callable[..., Engine],
) -> None:
    engine = make_gpu_engine()
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=3)

    engine.add(ask(known(prompt_of(1)), params=params))
    told = []
    while engine.has_work:
        told += [logprob for event in engine.step() for logprob in event.delta.logprobs]

    assert engine.stats().steps_ahead == 0
    assert len(told) == 6


@pytest.mark.usefixtures("eager_admission")
def test_a_pool_too_small_for_all_loses_nobody(make_gpu_engine: Callable[..., Engine]) -> None:
    kind = SamplingParams(temperature=0.8, max_tokens=60)
    requests = [
        ask(known(prompt_of(2 * row + 1)), params=replace(kind, seed=row)) for row in range(8)
    ]
    engine = make_gpu_engine(num_blocks=20)

    completions = engine.run(requests)

    assert [len(c.token_ids) for c in completions] == [60] * 8
    assert engine.stats().preemptions > 0
    assert engine.stats().steps_ahead > 5
    assert_idle(engine.core)
