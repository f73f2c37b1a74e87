"""`benchmarks.gpu_check` on a CPU: each section runs small, finds what is wrong, keeps time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.cached_logits import CachedLogitsSection
from benchmarks.gpu.cascade_speed import CascadeSpeedSection
from benchmarks.gpu.conformance import ConformanceSection
from benchmarks.gpu.decode_speed import DecodeSpeedSection
from benchmarks.gpu.greedy import GreedySection
from benchmarks.gpu.host_time import HostTimeSection
from benchmarks.gpu.layer_ops import LayerOpsSection
from benchmarks.gpu.prefill_speed import PrefillSpeedSection, num_flops
from benchmarks.gpu.report import has_passed, summarise
from benchmarks.gpu.rig import DryRig, GpuRig
from benchmarks.gpu.row import Row, SkippedError, at_least, at_most, fast_enough
from benchmarks.gpu.sizes import SMALL, TINY
from benchmarks.gpu.subject import first_layers, random_model
from benchmarks.gpu_check import NO_GPU, SECTIONS, main
from radixserve.engine.gpu import GpuParts
from radixserve.models.ops import PlainOps
from tests.attention.flashinfer_stand_in import StandInPackage
from tests.kit.plain_capture import PlainCapture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.gpu.budget import Section
    from benchmarks.gpu.rig import Rig
    from radixserve.attention.backend import AttentionBackend
    from radixserve.attention.layer_kv import LayerKV
    from radixserve.attention.metadata import AttentionMetadata
    from radixserve.models.ops import LayerOps

RIG = DryRig(SMALL, None)


class Scripted(NamedTuple):
    """A section that yields what it is told to."""

    name: str
    make: Callable[[], Iterator[Row]]

    def run(self, rig: Rig) -> Iterator[Row]:
        return self.make()


class Clock:
    """Goes on by a second whenever it is read."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


def rows_of(*sections: Scripted, seconds: float = 1000.0) -> list[Row]:
    rows = Budget(seconds, Clock()).run_sections(sections, RIG)
    return [row for row in rows if row.what != "time of this section"]


def test_the_dry_run_goes_through_every_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"

    assert main(["--dry-run", "--json", str(file)]) == 0

    report, table = json.loads(file.read_text()), capsys.readouterr().out
    assert report["is_dry_run"]
    assert report["passed"]
    assert {row["section"] for row in report["rows"]} == {section.name for section in SECTIONS}
    assert not [row for row in report["rows"] if row["what"] in ("failed", "cut short")]
    assert all(row["what"] in table for row in report["rows"])


def test_a_dry_run_judges_no_speed() -> None:
    slow = Scripted("slow", lambda: iter([fast_enough("speed", 0.1, "", 0.8)]))

    [row] = rows_of(slow)

    assert row.target == ">= 0.8"
    assert row.passed is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--json", str(tmp_path / "figures.json")]) == NO_GPU == 2

    captured = capsys.readouterr()
    assert captured.err == "gpu_check: no NVIDIA GPU was found; --dry-run needs none\n"
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


def test_a_section_that_fails_is_told_and_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken() -> Iterator[Row]:
        yield at_most("first", 0.0, "", 1.0)
        raise ValueError("a kernel is missing")

    rows = rows_of(
        Scripted("broken", broken), Scripted("whole", lambda: iter([at_least("x", 2, "", 1)]))
    )

    assert [(row.section, row.what, row.passed) for row in rows] == [
        ("broken", "first", True),
        ("broken", "failed", False),
        ("whole", "x", True),
    ]
    assert rows[1].note == "ValueError: a kernel is missing"
    assert "a kernel is missing" in capsys.readouterr().err
    assert not has_passed(rows)
    assert summarise(rows) == "2 of 3 checks passed; missed: broken: failed"


def test_a_section_can_say_that_it_does_not_run_here() -> None:
    def absent() -> Iterator[Row]:
        yield from ()
        raise SkippedError("no tokenizer")

    rows = rows_of(Scripted("absent", absent))

    assert [(row.what, row.note, row.passed) for row in rows] == [("skipped", "no tokenizer", None)]
    assert has_passed(rows)


def test_what_the_time_does_not_suffice_for_is_told() -> None:
    many = Scripted("many", lambda: (at_least(f"row {n}", 1, "", 1) for n in range(100)))
    rows = rows_of(many, Scripted("last", lambda: iter([])), seconds=6.0)

    assert [row.what for row in rows] == [
        "row 0",
        "row 1",
        "row 2",
        "row 3",
        "cut short",
        "skipped",
    ]
    assert rows[-1].section == "last"


def test_a_figure_that_is_not_a_number_passes_nothing() -> None:
    assert at_most("x", float("nan"), "", 1.0).passed is False
    assert at_least("x", float("nan"), "", 1.0).passed is False


class StandInRig(GpuRig):
    """FlashInfer's attention and the graphs over what computes the same on a CPU."""

    def device_seconds(self, action: Callable[[], object]) -> float:
        return DryRig.device_seconds(DryRig(self.sizes, None), action)

    def synchronize(self) -> None: ...

    def free_bytes(self) -> int:
        return 2**30


@pytest.mark.parametrize(
    "section",
    [
        ConformanceSection(),
        LayerOpsSection(),
        CachedLogitsSection(),
        GreedySection(),
        DecodeSpeedSection(),
        PrefillSpeedSection(),
        CascadeSpeedSection(),
        HostTimeSection(),
    ],
    ids=lambda section: section.name,
)
def test_what_is_done_on_a_gpu_is_right_with_kernels_that_compute_on_a_cpu(
    section: Section,
) -> None:
    package, capture = StandInPackage(), PlainCapture()
    parts = GpuParts(kernels=package.kernels(), ops=package.ops(), make_capture=lambda: capture)
    sizes = replace(SMALL, group_sizes=(3,), repeats=1)
    rig = StandInRig(sizes, None, torch.device("cpu"), parts)

    rows = list(Budget(100.0).run_sections([section], rig))

    assert [row for row in rows if row.passed is False and not row.is_timed] == []
    assert package.calls


class _Spoilt:
    """An attention that does not read some of what it should."""

    def __init__(self, inner: AttentionBackend) -> None:
        self._inner = inner
        self._has_cached = torch.zeros(0, dtype=torch.bool)

    def plan(self, metadata: AttentionMetadata) -> None:
        own = metadata.qo_indptr.diff().to(torch.int32)
        self._has_cached = (metadata.kv_lens > own).repeat_interleave(own.long())
        self._inner.plan(metadata)

    def run(self, layer_id: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = self._inner.run(layer_id, q, k, v)
        return torch.where(self._has_cached[:, None, None], torch.zeros_like(out), out)


class SpoiltRig(DryRig):
    """Its attention gives nothing for rows that have a cached beginning."""

    def attention(self, layers: Sequence[LayerKV], num_qo_heads: int) -> AttentionBackend:
        return _Spoilt(super().attention(layers, num_qo_heads))


@pytest.mark.parametrize("section", [ConformanceSection(), CachedLogitsSection()])
def test_an_attention_that_is_wrong_is_found(
    section: ConformanceSection | CachedLogitsSection,
) -> None:
    rows = list(Budget(100.0).run_sections([section], SpoiltRig(SMALL, None)))

    assert not has_passed(rows)
    assert all(row.what != "failed" for row in rows)


class _Gemma(PlainOps):
    """Norms that take their weight for what it is more than 1, as another family's do."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return super().norm(x, 1 + weight, eps)


class OtherOpsRig(DryRig):
    """Its norms are not this model's."""

    @property
    def ops(self) -> LayerOps:
        return _Gemma()


def test_an_operation_that_is_wrong_is_found() -> None:
    rows = list(Budget(100.0).run_sections([LayerOpsSection()], OtherOpsRig(SMALL, None)))

    wrong = [row.what for row in rows if row.passed is False]
    assert wrong == ["norm", "norm of a sum", "norm of heads, in place"]


def test_the_first_layers_share_their_weights_and_leave_the_model_as_it_is() -> None:
    whole = random_model(TINY, torch.device("cpu"))

    part = first_layers(whole, 1)

    assert (len(part.model.layers), part.spec.num_layers) == (1, 1)
    assert len(whole.model.layers) == whole.spec.num_layers == 2
    assert part.model.layers[0] is whole.model.layers[0]
    assert part.model.head is whole.model.head


def test_a_prompts_operations_are_counted() -> None:
    loaded = random_model({**TINY, "num_hidden_layers": 1}, torch.device("cpu"))
    # q, k, v and output of 4 and 2 heads of 64 over 256; gate, up and down of 256; two norms.
    weights = 256 * (256 + 128 + 128) + 256 * 256 + 3 * 256 * 256 + 2 * 256

    # Two tokens see three keys, each for a product with q and one with v, in 4 heads of 64.
    assert num_flops(loaded, 2) == 2 * 2 * weights + 3 * 4 * 4 * 64
