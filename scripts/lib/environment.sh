# The Python environment of this checkout: found, made, kept up to date. To be sourced.
#
#   RADIXSERVE_VENV    where it lies (default: .venv in the checkout)
#   RADIXSERVE_PYTHON  the interpreter to make it with (default: the first of python3, python3.13, .12, .11)

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=${RADIXSERVE_VENV:-$REPO/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV

# The release that is tested. It is installed before everything else, so that no other package's
# looser bound picks another one. On Linux the package index gives its CUDA build, which runs on
# machines without a GPU as well; to save the space, install a CPU build into the environment
# first: any torch in the range that pyproject.toml allows is kept.
TORCH=torch==2.13.0

say() {
  printf '[%s] %s\n' "$(basename "$0")" "$*" >&2
}

# make_environment [EXTRA]: brings the environment up to date; quick when nothing has changed.
make_environment() {
  cd "$REPO"
  make_venv
  install_torch
  install_package "${1:-}"
}

make_venv() {
  if [[ -x $VENV/bin/python && -x $VENV/bin/pip ]]; then
    return
  fi
  local python
  python=$(find_python)
  say "making the environment $VENV with $("$python" --version)"
  "$python" -m venv "$VENV"
}

find_python() {
  local name
  for name in ${RADIXSERVE_PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if command -v "$name" >/dev/null && "$name" - 2>/dev/null <<'PYTHON'; then
import ensurepip, sys, venv
sys.exit(sys.version_info < (3, 11))
PYTHON
      printf '%s\n' "$name"
      return
    fi
  done
  say "no Python 3.11 or newer with the venv module was found (on Debian: apt install python3-venv)"
  return 1
}

install_torch() {
  if ! "$VENV/bin/python" - 2>/dev/null <<'PYTHON'; then
import importlib.metadata, importlib.util, re, sys
release = tuple(map(int, re.findall(r"\d+", importlib.metadata.version("torch"))[:2]))
sys.exit(not ((2, 11) <= release < (2, 14) and importlib.util.find_spec("torch")))
PYTHON
    say "installing $TORCH"
    pip_install "$TORCH"
  fi
}

# install_package [EXTRA]: installs this checkout, and compiles its kernels, unless pyproject.toml and
# the kernels' sources are as they were the last time.
install_package() {
  local extra=$1 stamp wanted
  stamp=$VENV/radixserve-${extra:-base}.stamp
  wanted=$(printf '%s\n' "$REPO" && cat pyproject.toml cmake/CMakeLists.txt radixserve/kernels/csrc/*)
  if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    return
  fi
  say "installing radixserve${extra:+ with its $extra tools}; compiling its kernels takes a minute"
  pip_install --editable ".${extra:+[$extra]}"
  "$VENV/bin/python" -c 'from radixserve.kernels import why_not; print(why_not(), end="")' >&2
  printf '%s\n' "$wanted" >"$stamp"
}

pip_install() {
  local quiet=--quiet
  if [[ -t 2 ]]; then
    quiet=
  fi
  "$VENV/bin/python" -m pip install --disable-pip-version-check $quiet "$@"
}
