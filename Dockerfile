# docker build -t torch_openreg . && docker run --rm -v "$PWD/examples/cuda_project:/project:ro" torch_openreg
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++
RUN pip install 'torch==2.13.*' numpy ninja pyyaml 'setuptools>=77' --extra-index-url https://download.pytorch.org/whl/cpu
COPY . /source
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /source

FROM python:3.11-slim
COPY --from=build /wheels /wheels
RUN pip install /wheels/*.whl pytest --extra-index-url https://download.pytorch.org/whl/cpu
WORKDIR /project
CMD ["pytest", "--openreg-cuda", "--openreg-sanitizer", "-p", "no:cacheprovider"]
