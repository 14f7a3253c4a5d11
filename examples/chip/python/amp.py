"""Step 9 of docs/bring_up.md: mixed precision. In full: torch_openreg/extras/autocast/amp.py."""

import torch

from . import device


# docs: chip-amp
def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes of autocast, which looks for this function in ``torch.NAME``."""
    return [torch.float16, torch.bfloat16]


vars(device)["get_amp_supported_dtype"] = get_amp_supported_dtype
# docs: end
