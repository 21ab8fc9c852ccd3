#!/usr/bin/env bash
# What somebody does who has nothing but the wheel, in an empty folder and a bare environment: tools/try_wheel.sh WHEEL [PYTHON]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
wheel=$(realpath "$1") python=${2:-python3}
folder=$(mktemp -d) server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$folder"' EXIT

"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check -c "$root/constraints.txt" "$wheel"
mkdir "$folder/empty" && cd "$folder/empty"
export PATH="$folder/venv/bin:$PATH"
unset PYTHONPATH
set -x

coevolve --version
python -c 'import coevolve, sys; assert sys.prefix in coevolve.__file__, coevolve.__file__'
coevolve train quickstart steps=2 batch_size=8 output_dir=runs/quick
coevolve report runs/quick
coevolve export runs/quick team
echo "The soup at the harbour cafe was" | coevolve chat team --greedy
for kind in task reward play algorithm; do
  coevolve init "$kind"
  coevolve train "my_$kind.yaml" steps=2
done
coevolve init examples
coevolve recipes show quickstart > mine.yaml
coevolve train mine.yaml --dry-run

coevolve serve team --port 0 > served &
server=$!
for _ in $(seq 120); do grep -q Ctrl-C served && break; kill -0 "$server"; sleep 0.5; done
address=$(grep -o 'http://[^ ]*' served)
body='{"model": "quick", "messages": [{"role": "user", "content": "The soup at the harbour cafe was"}]'
curl -sS --fail "$address/models"
curl -sS --fail "$address/chat/completions" -H 'Content-Type: application/json' -d "$body}" | grep '"role": "observer"'
curl -sS --fail "$address/chat/completions" -H 'Content-Type: application/json' -d "$body, \"stream\": true}" | grep DONE
set +x
echo "the wheel works: $(basename "$wheel"), $(python --version)"
