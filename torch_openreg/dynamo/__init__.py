"""What Dynamo knows of the device: its interface, and the backend ``"openreg"`` of torch.compile.

Both modules register themselves. They are imported when a program has imported the module of Dynamo
that keeps what they register, see ``torch_openreg._imports.follow_dynamo``; ``import torch``
imports neither Dynamo nor them.
"""

__all__: list[str] = []
