from torch_openreg.openreg.graphs import *
