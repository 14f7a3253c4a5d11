"""Registrations with Dynamo: the device's interface, and the backend ``"openreg"``.

Both modules register themselves. They are imported when a program has imported Dynamo's registry
for them, see ``torch_openreg._imports.follow_dynamo``; ``import torch`` imports neither Dynamo nor
them.
"""

__all__: list[str] = []
