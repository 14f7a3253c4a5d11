"""The demo program: ``python -m torch_openreg``.

One module per section of its output: ``devices``, ``overlap`` and ``training``. ``digits``
loads the data, ``report`` prints and keeps count of what went wrong.
"""

__all__: list[str] = []
