from torch_openreg.openreg.initialization import *
