# Coevolve in a container. tools/docker.sh builds both:
#   cuda   torch as the package index has it, with CUDA      docker run --gpus all -v "$PWD:/work" coevolve:cuda train quickstart
#   cpu    a torch for processors alone, a tenth of the size, from the index that TORCH_INDEX names (PyTorch's own has one)

ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim AS base
COPY constraints.txt /tmp/
RUN useradd --create-home coevolve && mkdir /work && chown coevolve /work
WORKDIR /work
EXPOSE 8000
ENTRYPOINT ["coevolve"]
CMD ["--help"]

FROM base AS cpu
ARG TORCH_INDEX
RUN pip install --no-cache-dir -c /tmp/constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
RUN --mount=from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /wheels/*.whl)[lora,fast,hub]"
USER coevolve

FROM base AS cuda
RUN pip install --no-cache-dir -c /tmp/constraints.txt torch
RUN --mount=from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /wheels/*.whl)[lora,fast,hub,quant]"
USER coevolve
