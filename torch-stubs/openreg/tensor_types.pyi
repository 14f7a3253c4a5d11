from torch_openreg.openreg.tensor_types import *
