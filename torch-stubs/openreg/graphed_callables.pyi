from torch_openreg.extras.graph.graphed_callables import *
