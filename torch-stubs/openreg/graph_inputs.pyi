from torch_openreg.openreg.graph_inputs import *
