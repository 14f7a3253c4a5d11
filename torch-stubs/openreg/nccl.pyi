from torch_openreg.extras.distributed.nccl import *
