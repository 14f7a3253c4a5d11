from torch_openreg.extras.profiler.profiler import *
