from torch_openreg.openreg.nccl import *
