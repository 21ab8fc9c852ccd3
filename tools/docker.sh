#!/usr/bin/env bash
# Builds the containers of the Dockerfile and trains two steps in the one for processors: tools/docker.sh
# TORCH_INDEX is the package index with a torch for processors alone; without it both have CUDA's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
docker info > /dev/null 2>&1 || { echo "no docker daemon answers here; start one, and say this again" >&2; exit 1; }
for kind in cpu cuda; do
  docker build --target "$kind" --build-arg TORCH_INDEX="${TORCH_INDEX:-}" --tag "coevolve:$kind" .
done
docker run --rm coevolve:cpu train quickstart steps=2 batch_size=8
