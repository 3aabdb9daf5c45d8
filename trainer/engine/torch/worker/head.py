"""From hidden states to log-probabilities and entropies, some rows at a time: logits of all never exist at once."""

import torch

from torch import Tensor

# Logits that exist at a time: 64 MiB for a CPU, 512 MiB for a GPU, whose matrix products want many rows.
CHUNK_LOGITS = {"cpu": 2**24, "cuda": 2**27}


class ChunkedHead(torch.autograd.Function):
    """
    Scores of M rows and the scalar Σ dLogprob·logprob + dEntropy·entropy, which is all that may be differentiated.

    The pulls are known before the scores, so that the gradient of each chunk's logits is taken while they are there,
    and nothing is computed twice.
    """

    @staticmethod
    def forward(
        ctx,
        hidden_MD: Tensor,
        weight_VD: Tensor,
        targets_M: Tensor,
        pulls: tuple[Tensor, Tensor | None] | None,
        temperature: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        count, vocab = len(hidden_MD), len(weight_VD)
        logprobs = torch.empty(count, device=hidden_MD.device)
        entropy = torch.empty_like(logprobs)
        surrogate = torch.zeros((), device=hidden_MD.device)
        weight = weight_VD.to(dtype)
        wants_hidden, wants_weight = ctx.needs_input_grad[:2] if pulls is not None else (False, False)
        d_hidden = torch.empty_like(hidden_MD) if wants_hidden else None
        d_weight = torch.zeros(weight.shape, device=weight.device) if wants_weight else None
        size = max(1, CHUNK_LOGITS[hidden_MD.device.type] // vocab)
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            hidden = hidden_MD[part].to(dtype)
            logs = (hidden @ weight.T).float().div_(temperature)
            logs.sub_(logs.logsumexp(-1, keepdim=True))
            targets = targets_M[part, None]
            logprobs[part] = logs.gather(-1, targets)[:, 0]
            chances = logs.exp()
            entropy[part] = -(chances * logs).sum(-1)
            if pulls is None:
                continue
            d_logprobs = pulls[0][part]
            surrogate += d_logprobs @ logprobs[part]
            # ∂logprob/∂logit = 1[target] − p, ∂entropy/∂logit = −p·(log p + entropy)
            factor = -d_logprobs[:, None]
            if pulls[1] is not None:
                d_entropy = pulls[1][part]
                surrogate += d_entropy @ entropy[part]
                factor = factor - d_entropy[:, None] * logs.add_(entropy[part, None])
            d_logits = chances.mul_(factor).scatter_add_(-1, targets, d_logprobs[:, None]).div_(temperature).to(dtype)
            if d_hidden is not None:
                d_hidden[part] = d_logits @ weight
            if d_weight is not None:
                d_weight += d_logits.T @ hidden
        ctx.save_for_backward(d_hidden, None if d_weight is None else d_weight.to(weight_VD.dtype))
        ctx.mark_non_differentiable(logprobs, entropy)
        return surrogate, logprobs, entropy

    @staticmethod
    def backward(ctx, d_surrogate: Tensor, *_):
        d_hidden, d_weight = ctx.saved_tensors
        return (
            None if d_hidden is None else d_hidden * d_surrogate,
            None if d_weight is None else d_weight * d_surrogate,
            *(None,) * 4,
        )
