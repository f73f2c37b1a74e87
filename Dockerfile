# radixserve on an NVIDIA GPU. Neither built nor run yet on a machine with one.
#
#   docker build --build-arg ARCH="9.0a" -t radixserve .
#   docker run --gpus all -p 8000:8000 -v radixserve:/home/radixserve/.cache radixserve
#
# ARCH names the GPUs that kernels are compiled for: 8.0 A100, 8.9 L4 and L40, 9.0a H100 and H200.
# They are for bfloat16, heads of 64 and 128, and KV in bfloat16 and fp8_e4m3; PREBUILD asks for others,
# as in --build-arg PREBUILD="--dtype float16 --head-dims 256 --kv-cache-dtypes auto fp8_e5m2".

FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS build
ARG ARCH="9.0a"
ARG JOBS="4"
ARG PREBUILD=""
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv
ENV PATH="/opt/venv/bin:$PATH"
RUN pip install --no-cache-dir torch==2.13.0
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY cmake/CMakeLists.txt cmake/
COPY radixserve/ radixserve/
RUN pip install --no-cache-dir ".[cuda]"
COPY benchmarks/ benchmarks/
RUN python -m benchmarks.gpu.prebuild --arch $ARCH --jobs "$JOBS" $PREBUILD

FROM nvidia/cuda:13.0.1-base-ubuntu24.04
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 radixserve \
    && install --directory --owner radixserve /home/radixserve/.cache
COPY --from=build /opt/venv /opt/venv
COPY configs/gpu.toml /etc/radixserve/gpu.toml
# Without a compiler a module that is missing can only be an error: let it be one at once.
ENV PATH="/opt/venv/bin:$PATH" FLASHINFER_DISABLE_JIT="1"
USER radixserve
WORKDIR /home/radixserve
VOLUME /home/radixserve/.cache
EXPOSE 8000
HEALTHCHECK --start-period=5m CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["radixserve"]
CMD ["serve", "--config", "/etc/radixserve/gpu.toml", "--host", "0.0.0.0"]
