from torch_openreg.openreg.graphed_callables import *
