from torch_openreg.openreg.profiler import *
