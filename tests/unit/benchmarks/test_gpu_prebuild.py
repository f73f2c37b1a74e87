"""`benchmarks.gpu.prebuild`: the modules are those that the package will look for."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.gpu.prebuild import NO_TOOLS, main, pack, parse_args, set_environment
from benchmarks.gpu.toolchain import Toolchain, ToolchainError

REPO = Path(__file__).parents[3]

needs_flashinfer = pytest.mark.skipif(
    find_spec("flashinfer") is None, reason="the package flashinfer is not installed"
)


@pytest.fixture
def _no_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH", "FLASHINFER_EXTRA_LDFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)


def prebuild(*flags: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the command with a cache of its own."""
    paths = os.pathsep.join((str(REPO), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "FLASHINFER_WORKSPACE_BASE": str(home), "PYTHONPATH": paths}
    command = [sys.executable, "-m", "benchmarks.gpu.prebuild", *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@needs_flashinfer
def test_the_package_knows_every_module_that_gpu_check_needs(tmp_path: Path) -> None:
    done = prebuild("--list", home=tmp_path)

    assert done.returncode == 0, done.stderr
    names = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("missing")]
    assert len(names) == 8
    assert names[:4] == ["cascade", "norm", "rope", "silu_and_mul"]
    assert all(name.endswith("_kv_stride_equal") for name in names[4:])
    for kv_dtype, head_dim in (("bf16", 64), ("bf16", 128), ("e4m3", 64), ("e4m3", 128)):
        wanted = f"dtype_kv_{kv_dtype}_dtype_o_bf16_dtype_idx_i32_head_dim_qk_{head_dim}_"
        assert [name for name in names if wanted in name], names


@needs_flashinfer
def test_the_flags_choose_the_modules(tmp_path: Path) -> None:
    flags = ("--kv-cache-dtypes", "fp8_e5m2", "--head-dims", "256", "--dtype", "float16")
    done = prebuild("--list", *flags, home=tmp_path)

    names = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("missing")]
    assert len(names) == 5
    assert "dtype_q_f16_dtype_kv_e5m2_dtype_o_f16_dtype_idx_i32_head_dim_qk_256" in names[4]


@needs_flashinfer
@pytest.mark.parametrize("kind", ["Prefill", "Decode"])
def test_the_question_for_the_workspace_binds_to_the_real_signature(kind: str) -> None:
    import inspect

    import flashinfer

    from benchmarks.gpu.workspace import BATCHES, decode_question, prefill_question

    wrapper = getattr(flashinfer, f"Batch{kind}WithPagedKVCacheWrapper")
    signature = inspect.signature(inspect.unwrap(wrapper.workspace_size))
    asked = []

    def workspace_size(*args: object, **kwargs: object) -> tuple[int, int]:
        asked.append(signature.bind(None, *args, **kwargs).arguments)
        return 7, 8

    ask = prefill_question if kind == "Prefill" else decode_question
    assert ask(SimpleNamespace(workspace_size=workspace_size), BATCHES[0]) == 7
    assert (asked[0]["num_qo_heads"], asked[0]["page_size"]) == (32, 16)


@pytest.mark.skipif(find_spec("flashinfer") is not None, reason="flashinfer is installed")
def test_without_the_package_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "")

    assert main(["--list"]) == NO_TOOLS
    assert "pip install 'radixserve[cuda]'" in capsys.readouterr().err


def test_the_architectures_are_said_before_the_package_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "")
    monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")
    monkeypatch.setenv("MAX_JOBS", "")

    set_environment(parse_args(["--arch", "8.0", "9.0a", "--jobs", "3"]))

    assert os.environ["FLASHINFER_CUDA_ARCH_LIST"] == "8.0 9.0a"
    assert os.environ["MAX_JOBS"] == "3"
    assert "FLASHINFER_DISABLE_JIT" not in os.environ


@pytest.mark.parametrize("flags", [["--head-dims", "80"], ["--kv-cache-dtypes", "int8"]])
def test_what_has_no_kernel_is_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_args(flags)

    assert "invalid choice" in capsys.readouterr().err


def test_the_modules_are_packed_with_their_place_in_the_package(tmp_path: Path) -> None:
    library = tmp_path / "aot" / "cascade" / "cascade.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"code")

    pack([SimpleNamespace(aot_path=library)], tmp_path / "modules.tar")

    with tarfile.open(tmp_path / "modules.tar") as archive:
        assert archive.getnames() == ["data/aot/cascade/cascade.so"]


@pytest.mark.usefixtures("_no_toolkit")
def test_without_a_toolkit_it_says_which_packages_carry_one(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="pip install 'nvidia-cuda-nvcc"):
        Toolchain.find(tmp_path, site_packages=tmp_path)


def test_a_toolkit_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    monkeypatch.delenv("FLASHINFER_EXTRA_LDFLAGS", raising=False)

    assert Toolchain.find(tmp_path).environment() == {"CUDA_HOME": "/opt/cuda"}


@pytest.mark.usefixtures("_no_toolkit")
def test_the_packages_toolkit_gets_the_libraries_that_the_linker_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, links = tmp_path / "nvidia" / "cu13", tmp_path / "links"
    for file in (home / "bin" / "nvcc", home / "lib" / "libcudart.so.13"):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"")
    monkeypatch.setenv("CC", "true")  # what it would compile is a file with nothing in it

    found = Toolchain.find(links, site_packages=tmp_path).environment()

    assert found == {"CUDA_HOME": str(home), "FLASHINFER_EXTRA_LDFLAGS": f"-L{links}"}
    assert (links / "libcudart.so").resolve() == home / "lib" / "libcudart.so.13"
