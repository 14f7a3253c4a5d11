"""``python -m torch_openreg.cuda``, which runs a program that is written for CUDA."""

from torch_openreg import extras

extras.require("python -m torch_openreg.cuda", "cuda")

from torch_openreg.extras.cuda.program import main  # noqa: E402

__all__ = ["main"]

if __name__ == "__main__":
    main()
