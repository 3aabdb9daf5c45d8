"""Opens what the engine exported and scores tokens with it. Usage: open_exports.py MODEL [ADAPTER] < {"tokens": [...]}

Prints {"logprobs": [...], "missing": [...]} as JSON: log p(tokens[t] | tokens[<t]) for t >= 1, and the names
of weights that the loader did not find in the folder.
"""

import json
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


def main() -> None:
    torch.set_num_threads(1)
    model, info = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, output_loading_info=True)
    if len(sys.argv) > 2:
        model = PeftModel.from_pretrained(model, sys.argv[2])
    tokens = torch.tensor([json.load(sys.stdin)["tokens"]])
    with torch.no_grad():
        logs = torch.log_softmax(model(tokens).logits[0, :-1], dim=-1)
    logprobs = logs.gather(-1, tokens[0, 1:, None])[:, 0]
    print(json.dumps({"logprobs": logprobs.tolist(), "missing": sorted(info["missing_keys"])}))


if __name__ == "__main__":
    main()
