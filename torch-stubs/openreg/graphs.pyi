from torch_openreg.extras.graph.graphs import *
