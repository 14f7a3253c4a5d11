"""The functions of ``torch._C`` that say which algorithms of attention CUDA would run."""

from typing import Any

from torch.backends.cuda import SDPAParams
from torch.nn.attention import SDPBackend

from torch_openreg import _C

__all__ = ["SUPPLIED"]


def _can_use(algorithm: SDPBackend, params: SDPAParams, debug: bool) -> bool:
    return _C._can_use_attention(
        algorithm.value,
        params.query,
        params.key,
        params.value,
        params.attn_mask,
        params.dropout,
        params.is_causal,
        params.enable_gqa,
        debug,
    )


def _can_use_flash_attention(params: SDPAParams, debug: bool) -> bool:
    return _can_use(SDPBackend.FLASH_ATTENTION, params, debug)


def _can_use_mem_efficient_attention(params: SDPAParams, debug: bool) -> bool:
    return _can_use(SDPBackend.EFFICIENT_ATTENTION, params, debug)


def _can_use_cudnn_attention(params: SDPAParams, debug: bool) -> bool:
    return _can_use(SDPBackend.CUDNN_ATTENTION, params, debug)


SUPPLIED: dict[str, Any] = {
    "_can_use_cudnn_attention": _can_use_cudnn_attention,
    "_can_use_flash_attention": _can_use_flash_attention,
    "_can_use_mem_efficient_attention": _can_use_mem_efficient_attention,
    "_is_flash_attention_available": lambda: True,
}
